"""A fleet of real processes: tracers that are killed while ClickHouse is away, and one api over all."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from history import START_NS, history
from processes import SLOW_S, Tracer, free_port, until
from traffic import Engine, served
from wire import encoded

from kvtrail.__main__ import main

Start = Callable[..., Tracer]
S = 10**9
METRICS = Path(__file__).parents[3] / "docs" / "metrics.md"


class Server:
    """ClickHouse's engine as a process (`clickhouse_server.py`), which can be away."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"clickhouse://someone:a-secret@127.0.0.1:{self.port}/fleet?compress=false"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(__file__).parents[2] / "clickhouse_server.py"
        self.process = subprocess.Popen([sys.executable, str(program), str(self.port), str(self.folder)])
        until(self._listens)

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=SLOW_S).close()
        except OSError:
            return False
        return True


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "clickhouse")
    yield server
    server.end()


@pytest.fixture
def start_api(tmp_path: Path, server: Server) -> Iterator[Callable[[], str]]:
    """Starts `kvtrail serve --read-only` over the server, and returns its address."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> str:
        port = free_port()
        command = [sys.executable, "-m", "kvtrail", "serve", "--read-only", "--store", server.address]
        command += ["--http-port", str(port)]
        with (tmp_path / "api.log").open("wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=os.environ))
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert started[-1].poll() is None, (tmp_path / "api.log").read_text()
            try:
                return httpx.get(f"{url}/readyz", timeout=SLOW_S).is_success
            except httpx.TransportError:
                return False

        until(answers)
        return url

    yield start
    for process in started:
        process.terminate()
        process.wait(SLOW_S)


def test_a_fleet(tmp_path: Path, start_tracer: Start, server: Server, start_api: Callable[[], str]) -> None:
    """Nothing that was acknowledged is lost, and nothing is there twice."""
    server.start()
    first = start_api()  # before any tracer
    assert httpx.get(f"{first}/api/requests", timeout=SLOW_S).json() == []
    sent: dict[str, int] = {}

    def start(name: str) -> Tracer:
        return start_tracer("--spool", str(tmp_path / f"{name}.db"), store=server.address)  # type: ignore[arg-type]

    def spool(tracer: Tracer) -> dict[str, object]:
        return dict(tracer.get("/api/health")["spool"])

    tracers = {name: start(name) for name in ("one", "two")}
    for name, tracer in tracers.items():
        events = served(Engine(name), from_ns=START_NS, to_ns=START_NS + 90 * S, stale_every=9)
        sent[name] = len(events)
        parts = [events[at : at + 100] for at in range(0, len(events), 100)]
        tracer.post(encoded(parts[0], {"k8s.pod.name": f"pod-{name}", "service.name": "chat"}))
        if name == "one":
            until(lambda: not spool(tracers["one"])["batches"])
            server.end()
        for part in parts[1:]:
            tracer.post(encoded(part, {"k8s.pod.name": f"pod-{name}", "service.name": "chat"}))
    until(lambda: spool(tracers["one"])["status"] != "ok")
    assert "a-secret" not in tracers["one"].log.read_text() + str(spool(tracers["one"]))
    assert tracers["one"].get("/api/health")["status"] == "ok"
    assert tracers["one"].get("/api/findings"), "its own api goes on"
    exposed = re.findall(r"^# TYPE (kvtrail_spool_\w+)", tracers["one"].read("/metrics"), flags=re.MULTILINE)
    assert set(exposed) == set(re.findall(r"^\| `(kvtrail_spool_\w+)`", METRICS.read_text(), flags=re.MULTILINE))
    for tracer in tracers.values():
        tracer.kill()
    tracers = {name: start(name) for name in tracers}
    assert all(spool(tracer)["batches"] for tracer in tracers.values())
    server.start()
    until(lambda: all(not spool(tracer)["batches"] for tracer in tracers.values()))

    url = start_api()
    assert httpx.get(f"{first}/api/totals", timeout=SLOW_S).json()["requests"], "it sees what came since"

    def get(path: str, **asked: str | int) -> Any:
        response = httpx.get(f"{url}{path}", params=asked, timeout=SLOW_S)
        response.raise_for_status()
        return response.json()

    own = {name: tracer.get("/api/totals") for name, tracer in tracers.items()}
    until(lambda: all(not spool(tracer)["batches"] for tracer in tracers.values()))
    totals = get("/api/totals")
    assert totals == {key: own["one"][key] + own["two"][key] for key in totals}
    assert len(get("/api/spans", limit=10_000)) >= sent["one"] + sent["two"]
    fleet = get("/api/fleet")
    assert {engine["pod"] for engine in fleet["engines"]} == {"pod-one", "pod-two"}
    (first, *_) = get("/api/findings", engine="two")
    assert get(f"/api/requests/{first['request']}")["findings"]
    window = {"from_ns": START_NS, "to_ns": START_NS + 90 * S}
    assert set(get("/api/lanes", **window)["engines"]) == {"one", "two"}
    assert get("/api/efficiency", since_ns=START_NS, until_ns=START_NS + 90 * S)["worth"]
    assert httpx.post(f"{url}/v1/traces", content=b"", timeout=SLOW_S).status_code in (404, 405)
    assert "kvtrail_build_info" in httpx.get(f"{url}/metrics", timeout=SLOW_S).text
    server.end()
    assert httpx.get(f"{url}/readyz", timeout=SLOW_S).status_code == 503
    away = httpx.get(f"{url}/api/requests", timeout=SLOW_S)
    assert (away.status_code, "a-secret" in away.text) == (503, False)
    assert httpx.get(f"{url}/healthz", timeout=SLOW_S).is_success


def test_the_sides_of_a_pair_reach_two_tracers(
    tmp_path: Path, start_tracer: Start, server: Server, start_api: Callable[[], str]
) -> None:
    server.start()
    events = history(
        """
        start 600
        gives h1 600/600 of a
        <d> start 600
        <d> takes h1 600/600 of another
        """
    )
    for engine in ("d", "engine"):
        own = str(tmp_path / f"{engine}.db")
        tracer = start_tracer("--spool", own, store=server.address)  # type: ignore[arg-type]
        tracer.post(encoded([event for event in events if event.engine == engine]))
    url = start_api()
    until(lambda: bool(httpx.get(f"{url}/api/findings", timeout=SLOW_S).json()))
    (finding,) = httpx.get(f"{url}/api/findings", timeout=SLOW_S).json()
    assert (finding["rule"], finding["engine"], finding["count"]) == ("handoff-mismatch", "d", 1)


def test_what_waits_is_sent_when_the_tracer_ends(tmp_path: Path, start_tracer: Start, server: Server) -> None:
    server.start()
    tracer = start_tracer("--spool", str(tmp_path / "own.db"), store=server.address)  # type: ignore[arg-type]
    tracer.post(encoded(served(Engine("e"), from_ns=START_NS, to_ns=START_NS + 20 * S)))
    tracer.process.send_signal(signal.SIGTERM)
    assert tracer.process.wait(SLOW_S) == 0
    result = CliRunner().invoke(main, ["audit", "--json", "--since", "9000d", "--store", server.address])
    assert result.exit_code == 3, result.output  # the engine still runs
    assert '"missing": 0' in result.output


@pytest.mark.parametrize(("command", "code"), [(["serve", "--read-only"], 1), (["audit"], 2)])
def test_a_clickhouse_that_is_not_there_is_said_in_a_sentence(command: list[str], code: int, server: Server) -> None:
    result = CliRunner().invoke(main, [*command, "--store", server.address])
    assert result.exit_code == code
    assert f"cannot open the store clickhouse://127.0.0.1:{server.port}/fleet" in result.output
    assert "a-secret" not in result.output
    assert "Traceback" not in result.output


def test_an_api_over_a_file_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--read-only", "--store", str(tmp_path / "s.db")])
    assert result.exit_code == 2
    assert "needs a --store that is the address of a ClickHouse" in result.output
