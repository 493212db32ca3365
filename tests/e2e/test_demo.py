"""The demo as `make demo` runs it: a real engine, a real tracer, a real dashboard, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from demos import Demo, children_left, demo
from processes import SLOW_S, until


def number(text: str, what: str) -> int:
    found = re.search(rf"^  {what}\s+([\d,]+)", text, flags=re.MULTILINE)
    assert found is not None, text
    return int(found[1].replace(",", ""))


def test_once_ends_by_itself_with_a_summary(tmp_path: Path) -> None:
    with demo(tmp_path, "--once", "--trace-file", "trace.jsonl") as run:
        assert run.finish() == 0, run.output()
        output = run.output()
    assert number(output, "requests") == 48
    for what in ("lookups", "tokens matched", "tokens loaded", "tokens stored", "preemptions"):
        assert number(output, what) > 0, output
    assert number(output, "findings") == 0
    assert "The generated tokens are the same as those of an engine without a connector." in output
    audit = [sys.executable, "-m", "kvtrail", "audit", "trace.jsonl"]
    result = subprocess.run(audit, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "48 requests: 0 with drift, 48 ok, 0 unknown" in result.stdout


def test_the_bug_kills_the_engine_and_is_explained(tmp_path: Path) -> None:
    with demo(tmp_path, "--bug", "stale-lookup", "--trace-file", "trace.jsonl") as run:
        run.wait_for_output("Why: ")
        output = run.output()
        (finding,) = run.get("/api/findings")
        (failed,) = run.get("/api/requests?status=failed")
        metrics = httpx.get(f"http://127.0.0.1:{run.http_port}/metrics", timeout=SLOW_S).text
        page = httpx.get(f"http://127.0.0.1:{run.dashboard_port}/_stcore/health", timeout=SLOW_S)
    mismatch = r"Mismatch in tokens to load: 256 vs 256 \(tokens in the cache\) - (\d+) \(tokens in vllm\) - 0 \("
    died = re.search(mismatch, output)
    assert died is not None, output
    assert finding["rule"] == "stale-lookup"
    assert finding["numbers"]["matched"] == finding["numbers"]["returned"] == 256
    assert finding["numbers"]["computed"] == int(died[1])
    assert failed["request"] == finding["request"]
    assert re.search(mismatch, failed["error"])
    assert re.search(r'kvtrail_findings_total{.*rule="stale-lookup",severity="crash"} 1.0', metrics)
    assert page.is_success
    audit = [sys.executable, "-m", "kvtrail", "audit", "trace.jsonl"]
    result = subprocess.run(audit, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert finding["explanation"] in result.stdout


def test_healed_the_same_workload_finishes(tmp_path: Path) -> None:
    with demo(tmp_path, "--bug", "stale-lookup", "--guard", "heal", "--once") as run:
        assert run.finish() == 0, run.output()
        output = run.output()
    assert "The generated tokens are the same as those of an engine without a connector." in output
    assert re.search(r"^stale-lookup, .* times: A cached lookup answer", output, flags=re.MULTILINE), output
    assert "  It could: crash. It did: healed.\n" in output
    assert number(output, "requests") == 16
    assert number(output, "tokens loaded") > 0


def test_it_goes_on_gently_until_ctrl_c_and_a_second_one_in_its_folder_is_refused(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_for_output("The dashboard is at")
        (tmp_path / "second").mkdir()
        second = Demo(tmp_path / "second", "--folder", str(tmp_path / ".demo"))
        assert second.finish() == 1
        assert f"Error: another demo is running in {tmp_path / '.demo'}" in second.output()
        run.wait_for_output("The workload repeats gently until Ctrl-C.")
        served = run.get("/api/overview")["totals"]["requests"]
        until(lambda: run.get("/api/overview")["totals"]["requests"] > served)
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 0
        assert "nothing is left running" in run.output()
        assert "Traceback" not in run.output()


@pytest.mark.parametrize("after", ["Starting the tracer", "Starting a real vLLM engine"])
def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path, after: str) -> None:
    with demo(tmp_path) as run:
        run.wait_for_output(after)
        program = "serve" if after == "Starting the tracer" else "kvtrail.connector.demo.engine"
        until(lambda: any(program in child.cmdline() for child in run.children()), why=run.output)
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 0
        assert children_left(tmp_path) == []
        assert "Traceback" not in run.output()


def test_a_killed_demo_takes_its_children_along(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_for_output("Starting a real vLLM engine")
        until(lambda: engines(run, plain=False), why=run.output)
        run.process.kill()
        run.process.wait()
        until(lambda: children_left(tmp_path) == [], why=lambda: children_left(tmp_path))


def test_a_killed_child_is_reported(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_for_output("until Ctrl-C.")
        run.tracer().kill()
        assert run.finish() == 1
        assert "Error: the tracer ended unexpectedly, by signal SIGKILL" in run.output()


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
