"""The demo as `make demo` runs it: a real engine, a real tracer, a real dashboard, and nothing left behind.

One demo runs once to its end, the engine of one dies, and the others are ended while they start.
test_live_demo.py has one that goes on.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from demos import Demo, children_left, demo, total
from processes import SLOW_S, free_port, until
from terminals import SIZES, Terminal

from kvtrail.tracer.events.cache_groups import groups_of
from kvtrail.tracer.history.history import load
from kvtrail.tracer.model.words import without_epochs

COLUMNS, ROWS = SIZES[0]
ASSERTION = "AssertionError: Mismatch in tokens to load"
MISMATCH = r"Mismatch in tokens to load: 256 vs 256 \(tokens in the cache\) - (\d+) \(tokens in vllm\) - 0 \("
WHY = "Why: stale-lookup: A cached lookup answer was handed out without regard"


@pytest.mark.parametrize(("model", "groups"), [("opt", 1), ("hybrid", 2)])
def test_once_ends_on_its_own_with_a_summary(tmp_path: Path, model: str, groups: int) -> None:
    with demo(tmp_path, "--once", "--model", model, "--trace-file", "trace.jsonl") as run:
        assert run.finish() == 0, run.output()
        output = run.output()
    assert total(output, "requests") == 48
    for what in ("lookups", "tokens matched", "tokens loaded", "tokens stored", "preemptions"):
        assert total(output, what) > 0, output
    assert total(output, "findings") == 0
    assert "The generated tokens are the same as those of an engine without a connector." in output
    audit = [sys.executable, "-m", "kvtrail", "audit", "trace.jsonl"]
    result = subprocess.run(audit, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "48 requests: 0 with drift, 48 ok, 0 unknown" in result.stdout
    events = load([tmp_path / "trace.jsonl"]).events
    assert {len(groups_of(event.groups)) for event in events} == {groups}


@dataclass
class Died:
    """A demo in a terminal, as it stands after its engine has died of the bug; it is ended by Ctrl-C."""

    terminal: Terminal
    http_port: int
    dashboard_port: int

    @property
    def trace(self) -> Path:
        """Its trace file, once the engine's last heartbeat is in it."""
        path = self.terminal.folder / "trace.jsonl"
        until(lambda: "kvtrail.recorder.ended_by" in path.read_text(), why=lambda: path.read_text()[-2000:])
        return path

    def get(self, path: str) -> str:
        response = httpx.get(f"http://127.0.0.1:{self.http_port}{path}", timeout=SLOW_S)
        response.raise_for_status()
        return response.text


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Died]:
    folder = tmp_path_factory.mktemp("died")
    ports = {name: free_port() for name in ("grpc", "http", "dashboard")}
    demo = Terminal(
        "demo", "--bug", "stale-lookup", "--trace-file", "trace.jsonl",
        *(part for name, port in ports.items() for part in (f"--{name}-port", port)),
        columns=COLUMNS, rows=ROWS, folder=folder,
    )  # fmt: skip
    try:
        demo.until(WHY)
        yield Died(demo, ports["http"], ports["dashboard"])
    finally:
        demo.kill()
        until(lambda: children_left(folder) == [], why=lambda: children_left(folder))


def test_the_bug_kills_the_engine_and_is_explained(died: Died) -> None:
    (finding,) = json.loads(died.get("/api/findings"))
    (failed,) = json.loads(died.get("/api/requests?status=failed"))
    raised = re.search(MISMATCH, " ".join(died.terminal.raw.split()))
    assert raised is not None, died.terminal.raw
    assert finding["rule"] == "stale-lookup"
    assert finding["numbers"]["matched"] == finding["numbers"]["returned"] == 256
    assert finding["numbers"]["computed"] == int(raised[1])
    assert failed["request"] == finding["request"]
    assert re.search(MISMATCH, failed["error"])
    found = r'kvtrail_findings_total{.*rule="stale-lookup",severity="crash",silenced="false"} 1.0'
    assert re.search(found, died.get("/metrics"))
    assert httpx.get(f"http://127.0.0.1:{died.dashboard_port}/_stcore/health", timeout=SLOW_S).is_success
    audit = [sys.executable, "-m", "kvtrail", "audit", str(died.trace)]
    result = subprocess.run(audit, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert without_epochs(finding["explanation"]) in result.stdout


def test_the_last_lines_say_what_died_and_why(died: Died) -> None:
    """In the last three lines, which fit the terminal; and nothing is `served` where all was lost."""
    until_ctrl_c, what, why = died.terminal.last[-3:]
    assert until_ctrl_c == "The dashboard stays until Ctrl-C."
    assert re.match(rf"The engine died, [1-8] requests? lost: {ASSERTION}", what), what
    assert why.startswith(WHY), why
    text = re.sub(r"\x1b\[[0-9;]*m", "", died.terminal.raw)
    assert "requests served" not in text
    assert "  It could: crash. It did: engine died." in text
    assert max(len(line) for line in text.splitlines()[-16:]) <= COLUMNS


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_audit_begins_with_the_assertion(died: Died, columns: int, rows: int) -> None:
    """What the finding could do and what it did are two things."""
    audit = Terminal("audit", died.trace, columns=columns, rows=500)
    assert audit.end() == 1
    text = " ".join(audit.text.split())
    assert re.match(rf"Engine .* died at .* UTC of {ASSERTION}: .* Lost: [1-8] requests?: r1p1-bug-0\d", text), text
    assert re.search(r"Why: A cached .* \(stale-lookup of request r1p1-bug-0\S+\) stale-lookup \[could", text), text
    assert "stale-lookup [could: crash]" in text
    assert "; did: engine died Let L1 =" in text
    assert max(map(len, audit.screen)) <= columns


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_replay_goes_from_the_death_back_to_its_cause(died: Died, columns: int, rows: int) -> None:
    """The first key counts, the whole height is used, and the answer can be read."""
    replay = Terminal("replay", died.trace, columns=columns, rows=rows)
    try:
        replay.type("f")
        cause = re.compile(r"^>\s*\d+! .*lookup: answered 256, cached", re.MULTILINE)
        replay.until(cause, "stale-lookup [could: crash]")
        replay.until_last_line("n next")
        assert sum(bool(line) for line in replay.screen) >= rows - 3
        replay.type("q")
        assert replay.end() == 1
    finally:
        replay.kill()


def test_after_ctrl_c_the_last_lines_still_say_it(died: Died) -> None:
    died.terminal.type("\x03")
    assert died.terminal.end() == 0
    what, why, ended = died.terminal.last[-3:]
    assert what.startswith("The engine died")
    assert why.startswith("Why: ")
    assert ended == "Ended; nothing is left running."


@pytest.mark.parametrize("after", ["Starting the tracer", "Starting a real vLLM engine"])
def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path, after: str) -> None:
    with demo(tmp_path) as run:
        run.wait_for_output(after)
        program = "serve" if after == "Starting the tracer" else "kvtrail.connector.demo.engine"
        until(lambda: any(program in child.cmdline() for child in run.children()), why=run.output)
        run.interrupt()
        assert children_left(tmp_path) == []


def test_a_killed_demo_takes_its_children_along(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_for_output("Starting a real vLLM engine")
        until(lambda: engines(run, plain=False), why=run.output)
        run.process.kill()
        run.process.wait()
        until(lambda: children_left(tmp_path) == [], why=lambda: children_left(tmp_path))


@pytest.mark.parametrize("plain", [False, True], ids=["engine", "plain engine"])
def test_a_killed_engine_is_reported_and_fails_the_demo(tmp_path: Path, plain: bool) -> None:
    with demo(tmp_path, "--once") as run:
        run.wait_for_output("Starting a real vLLM engine")
        until(lambda: len(engines(run, plain)) == 1)
        os.kill(engines(run, plain)[0], signal.SIGKILL)
        assert run.finish() == 1
        name = "plain engine" if plain else "engine"
        assert f"Error: the {name} ended unexpectedly, by signal SIGKILL" in run.output()


def engines(run: Demo, plain: bool) -> list[int]:
    """The ids of its engines with a connector, or of those without."""
    commands = {child.pid: child.cmdline() for child in run.children()}
    ours = {pid: command for pid, command in commands.items() if "kvtrail.connector.demo.engine" in command}
    return [pid for pid, command in ours.items() if json.loads(command[-1])["plain"] == plain]


@pytest.mark.parametrize("option", ["--grpc-port", "--http-port", "--dashboard-port", "--metrics-port"])
def test_a_port_in_use_is_reported(tmp_path: Path, option: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        run = Demo(tmp_path, option, str(port))
        assert run.finish() == 1
    assert (
        f"Error: port {port} on 127.0.0.1 is taken (Address already in use); choose another with {option}"
        in run.output()
    )
