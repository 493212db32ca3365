"""How the sidecar begins, ends, and behaves towards those who ask wrongly: the real process."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from forked_commands import Forked
from history import history
from processes import SLOW_S, Tracer, alive, listening, until
from wire import encoded

from kvtrail.tracer.serve import http_server
from kvtrail.tracer.serve.limits import Limits

Start = Callable[..., Tracer]
BODY = {"content-type": "application/x-protobuf"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_good_order(start_tracer: Start, number: signal.Signals) -> None:
    """With a connection open."""
    tracer = start_tracer()
    tracer.post(encoded(history("L 749 c0 h256 -> 256\nA 256")))
    with httpx.Client(timeout=SLOW_S) as client:
        client.get(f"{tracer.url}/api/totals")
        tracer.process.send_signal(number)
        assert tracer.process.wait(SLOW_S) == 0
    said = tracer.log.read_text()
    assert "stopping" in said
    assert "Aborted" not in said
    assert "Traceback" not in said


def test_probes(start_tracer: Start) -> None:
    tracer = start_tracer()
    assert tracer.get("/healthz") == tracer.get("/readyz") == {"status": "ok"}
    assert tracer.get("/api/health")["status"] == "ok"


def test_a_store_that_cannot_be_written_is_reported(start_tracer: Start) -> None:
    """And that it can be again. Another process that writes to the file stands for a full disk."""
    tracer = start_tracer()
    other = sqlite3.connect(tracer.store, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(httpx.HTTPStatusError, match="503"):
        tracer.post(encoded(history("L 749 c0 h256 -> 256\nA 256")))
    ready = httpx.get(f"{tracer.url}/readyz", timeout=SLOW_S)
    assert (ready.status_code, "locked" in ready.json()["status"]) == (503, True)
    assert "locked" in tracer.get("/api/health")["status"]
    assert tracer.get("/healthz") == {"status": "ok"}
    other.execute("ROLLBACK")
    until(lambda: httpx.get(f"{tracer.url}/readyz", timeout=SLOW_S).status_code == 200)
    other.close()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.test"}, 403),
        ({"host": "evil.test:4318"}, 403),
        ({"host": "localhost.evil.test"}, 403),
        ({"host": "127.0.0.1.evil.test"}, 403),
        ({"host": "[bad"}, 403),
        ({"host": ""}, 403),
        ({"host": "LOCALHOST:4318"}, 200),
        ({"host": "localhost."}, 200),
        ({"host": "10.1.2.3:4318"}, 200),
        ({"host": "[::1]:4318"}, 200),
        ({"host": "kvtrail.monitoring.svc.cluster.local:4318"}, 200),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, 200),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, 403),
        ({"host": "localhost:1", "origin": "http://evil.test"}, 403),
        ({"host": "localhost:1", "origin": "null"}, 403),
    ],
)
def test_only_known_hosts_are_answered(guarded: Tracer, headers: dict[str, str], code: int) -> None:
    for path in ("/api/health", "/metrics"):
        answer = httpx.get(f"{guarded.url}{path}", headers=headers, timeout=SLOW_S)
        assert answer.status_code == code, answer.text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    tracer = listening(tmp_path_factory.mktemp("guarded"), "--allow-host", "*.svc.cluster.local")
    yield tracer
    tracer.end()


def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    tracer = listening(tmp_path, "--grpc-host", "::1", host="::1")
    try:
        assert httpx.get(f"http://[::1]:{tracer.http_port}/healthz", timeout=SLOW_S).status_code == 200
        with grpc.insecure_channel(f"[::1]:{tracer.grpc_port}") as channel:
            export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
            assert export(b"", timeout=SLOW_S, wait_for_ready=True) == b""
        assert f"http://[::1]:{tracer.http_port}/v1/traces" in tracer.log.read_text()
    finally:
        tracer.end()


def test_over_grpc_it_listens_on_loopback_unless_it_is_told(tmp_path: Path) -> None:
    tracer = listening(tmp_path, "--insecure", host="0.0.0.0")
    try:
        until(lambda: "OTLP on " in tracer.log.read_text())
        assert f"OTLP on 127.0.0.1:{tracer.grpc_port} (gRPC) and http://0.0.0.0:" in tracer.log.read_text()
    finally:
        tracer.end()


def test_it_reports_the_ports_that_the_system_gave_it(tmp_path: Path) -> None:
    log, ports = tmp_path / "log", ["--grpc-port", "0", "--http-port", "0"]
    process = Forked(["serve", "--store", str(tmp_path / "s.db"), *ports], out=log)
    pattern = re.compile(r"OTLP on 127\.0\.0\.1:(\d+) \(gRPC\) and http://127\.0\.0\.1:(\d+)/v1/traces")
    try:
        until(lambda: pattern.search(log.read_text()) or process.poll() is not None, why=log.read_text)
        grpc_port, http_port = pattern.findall(log.read_text())[0]
        tracer = Tracer(process, int(grpc_port), int(http_port), tmp_path / "s.db", log)
        until(lambda: alive(tracer), why=log.read_text)
        socket.create_connection(("127.0.0.1", tracer.grpc_port), timeout=SLOW_S).close()
    finally:
        process.terminate()
        process.wait()


def test_a_body_is_refused_as_soon_as_it_is_too_large(api: Tracer) -> None:
    """Not after it has come: its length is not given."""
    part, sent = bytes(1 << 20), 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += len(part)
            yield part

    with pytest.raises((httpx.WriteError, httpx.RemoteProtocolError, httpx.HTTPStatusError)):
        httpx.post(f"{api.url}/v1/traces", content=endless(), headers=BODY, timeout=SLOW_S).raise_for_status()
    assert sent < 8 * Limits().request_bytes


def test_a_large_body_keeps_no_request_waiting(api: Tracer) -> None:
    """JSON that takes seconds to parse is parsed beside the event loop: the answer to a probe does not come after it."""
    spans = [{"traceId": "0" * 31 + "1", "spanId": f"{n:016x}", "name": "x" * 50} for n in range(1, 29_000)]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"scope": {"name": "x"}, "spans": spans}]}]}).encode()
    done: list[str] = []

    def send() -> None:
        headers = {"content-type": "application/json"}
        httpx.post(f"{api.url}/v1/traces", content=body, headers=headers, timeout=SLOW_S).raise_for_status()
        done.append("body")

    sender = threading.Thread(target=send)
    sender.start()
    while sender.is_alive() and len(done) < 3:
        httpx.get(f"{api.url}/healthz", timeout=SLOW_S).raise_for_status()
        done.append("probe")
    sender.join()
    assert done.index("body") > 2


class Connection:
    """What the server knows of a connection."""

    def __init__(self, cycle: Any) -> None:
        self.cycle, self.closed = cycle, False
        self.transport = self

    def close(self) -> None:
        self.closed = True


class Cycle:
    def __init__(self, *, response_complete: bool) -> None:
        self.response_complete = response_complete


async def nobody(scope: Any, receive: Any, send: Any) -> None:
    """An application that is not to be asked."""
    raise AssertionError(scope)


def test_a_connection_that_asks_nothing_is_closed() -> None:
    """Also one that has been answered and sends half of its next request; not one with a slow answer."""
    server = http_server.HttpServer(nobody, limits=Limits(), drain_s=1)
    silent, asked_again, busy = (
        Connection(None),
        Connection(Cycle(response_complete=True)),
        Connection(Cycle(response_complete=False)),
    )
    server.server_state.connections |= {silent, asked_again, busy}  # type: ignore[arg-type]
    server._close_stalled(0.0)
    late = Connection(None)
    server.server_state.connections.add(late)  # type: ignore[arg-type]
    server._close_stalled(Limits().receive_seconds)
    assert not any(each.closed for each in (silent, asked_again, busy, late))
    server._close_stalled(Limits().receive_seconds + 1)
    assert [each.closed for each in (silent, asked_again, busy, late)] == [True, True, False, False]


def test_uvicorn_still_says_which_connections_wait() -> None:
    """The real server's connections; the test above knows only their names."""

    async def served() -> bytes:
        server = http_server.HttpServer(nobody, limits=Limits(receive_seconds=0), drain_s=1)
        listener = socket.create_server(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: half")
        cut_off = await asyncio.wait_for(reader.read(), SLOW_S)
        server.should_exit = True
        writer.close()
        await task
        return cut_off

    assert asyncio.run(served()) == b""


def test_the_documentation_of_the_api_loads_nothing_from_elsewhere(api: Tracer) -> None:
    page = api.read("/docs")
    sources = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page)
    assert sources
    for source in sources:
        assert source.startswith("/"), source
        assert httpx.get(f"{api.url}{source}", timeout=SLOW_S).status_code == 200
    assert "http" not in page.replace(api.url, "")
    assert httpx.get(f"{api.url}/redoc", timeout=SLOW_S).status_code == 404
