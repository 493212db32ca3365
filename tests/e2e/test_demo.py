"""The demo as `make demo` runs it: a real engine, a real tracer, a real dashboard, and nothing left behind.

One demo runs once to its end, and the others are ended while they start. test_live_demo.py has one that goes on, and
test_demo_of_a_death.py one whose engine dies.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import exported
from demos import Demo, children_left, demo, total
from processes import free_port, until

from kvtrail.connector.demo import demo as demo_process
from kvtrail.connector.demo.children import Children
from kvtrail.connector.demo.demo import DemoError
from kvtrail.connector.demo.options import OPT, Options
from kvtrail.tracer.events.cache_groups import groups_of
from kvtrail.tracer.history.history import load

STUB = str(Path(__file__).parents[1] / "stub_demo.py")


@pytest.mark.costly("vLLM starts twice")
@pytest.mark.parametrize(("model", "groups"), [("opt", 1), pytest.param("hybrid", 2, marks=pytest.mark.long)])
def test_once_ends_on_its_own_with_a_summary(tmp_path: Path, model: str, groups: int) -> None:
    with demo(tmp_path, "--once", "--model", model) as run:
        assert run.finish() == 0, run.output()
        output = run.output()
    assert total(output, "requests") == 48
    for what in ("lookups", "tokens matched", "tokens loaded", "tokens stored", "preemptions"):
        assert total(output, what) > 0, output
    assert total(output, "findings") == 0
    assert "The generated tokens are the same as those of an engine without a connector." in output
    trace = exported(tmp_path / ".demo" / "kvtrail.db", tmp_path / "trace.jsonl")
    audit = [sys.executable, "-m", "kvtrail", "audit", str(trace)]
    result = subprocess.run(audit, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "48 requests: 0 with drift, 48 ok, 0 unknown" in result.stdout
    events = load([trace]).events
    assert {len(groups_of(event.groups)) for event in events} == {groups}


@pytest.mark.parametrize("after", ["Starting the tracer", "Starting a real vLLM engine"])
def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path, after: str) -> None:
    with demo(tmp_path) as run:
        run.wait_for_output(after)
        program = "serve" if after == "Starting the tracer" else "kvtrail.connector.demo.engine_process"
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


@pytest.mark.costly("starts a real engine")
def test_a_killed_engine_is_reported_and_fails_the_demo(tmp_path: Path) -> None:
    with demo(tmp_path, "--once") as run:
        run.wait_for_output("Starting a real vLLM engine")
        until(lambda: len(engines(run, plain=False)) == 1)
        os.kill(engines(run, plain=False)[0], signal.SIGKILL)
        assert run.finish() == 1
        assert "Error: the engine ended unexpectedly, by signal SIGKILL" in run.output()


@pytest.mark.parametrize("name", ["plain engine", "tracer"])
def test_a_killed_child_is_reported(tmp_path: Path, name: str) -> None:
    """Its engines are stubs; the plain one never ends its round where it is killed."""
    with demo(tmp_path, program=[STUB, name]) as run:
        run.wait_for_output("48 requests served." if name == "plain engine" else "until Ctrl-C")
        killed = run.tracer().pid if name == "tracer" else engines(run, plain=True)[0]
        os.kill(killed, signal.SIGKILL)
        assert run.finish() == 1
        assert f"Error: the {name} ended unexpectedly, by signal SIGKILL" in run.output()


def engines(run: Demo, plain: bool) -> list[int]:
    """The ids of its engines with a connector, or of those without."""
    commands = {child.pid: child.cmdline() for child in run.children()}
    ours = {pid: command for pid, command in commands.items() if "kvtrail.connector.demo.engine_process" in command}
    return [pid for pid, command in ours.items() if (json.loads(command[-1])[2] is None) == plain]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def test_a_port_in_use_ends_the_demo(tmp_path: Path, taken: int) -> None:
    run = Demo(tmp_path, "--dashboard-port", str(taken))
    assert run.finish() == 1
    assert f"Error: port {taken} on 127.0.0.1 is taken (Address already in use); choose another" in run.output()


@pytest.mark.parametrize("name", ["grpc_port", "http_port", "dashboard_port", "metrics_port"])
def test_a_port_in_use_is_named(tmp_path: Path, taken: int, name: str) -> None:
    ports: dict[str, Any] = {"grpc_port": free_port(), "http_port": free_port(), "dashboard_port": free_port()}
    options = Options(
        once=True, pd=False, model=OPT, bug=None, guard="observe", folder=tmp_path,
        **{"metrics_port": None, **ports, name: taken},
    )  # fmt: skip
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(DemoError, match=rf"port {taken} on 127\.0\.0\.1 is taken .*; choose another with {option}$"):
        demo_process.run(options, Children())
    assert not list(tmp_path.iterdir()), "nothing has begun"
