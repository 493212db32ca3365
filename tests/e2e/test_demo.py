"""The demo, as `make demo` runs it: a real engine, a real tracer, a real dashboard, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from demos import Demo, children_left, demo
from processes import until


def number(text: str, what: str) -> int:
    found = re.search(rf"^  {what}\s+([\d,]+)", text, flags=re.MULTILINE)
    assert found is not None, text
    return int(found[1].replace(",", ""))


def test_once_ends_by_itself_with_a_summary(tmp_path: Path) -> None:
    with demo(tmp_path, "--once", "--trace-file", "trace.jsonl") as run:
        assert run.finish() == 0, run.said()
        said = run.said()
    assert number(said, "requests") == 48
    for what in ("lookups", "tokens matched", "tokens loaded", "tokens stored", "preemptions"):
        assert number(said, what) > 0, said
    assert number(said, "findings") == 0
    assert "The generated tokens are the same as those of an engine without a connector." in said
    audit = [sys.executable, "-m", "kvtrail", "audit", "trace.jsonl"]
    result = subprocess.run(audit, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "48 requests: 0 with drift, 48 ok, 0 unknown" in result.stdout


def test_the_bug_kills_the_engine_and_is_explained(tmp_path: Path) -> None:
    with demo(tmp_path, "--bug", "stale-lookup", "--trace-file", "trace.jsonl") as run:
        run.wait_until_said("until Ctrl-C")
        said = run.said()
        (finding,) = run.get("/api/findings")
        (failed,) = run.get("/api/requests?status=failed")
        metrics = httpx.get(f"http://127.0.0.1:{run.http_port}/metrics").text
        page = httpx.get(f"http://127.0.0.1:{run.dashboard_port}/_stcore/health")
    mismatch = r"Mismatch in tokens to load: 256 vs 256 \(tokens in the cache\) - (\d+) \(tokens in vllm\) - 0 \("
    died = re.search(mismatch, said)
    assert died is not None, said
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
        assert run.finish() == 0, run.said()
        said = run.said()
    assert "The generated tokens are the same as those of an engine without a connector." in said
    assert re.search(r"stale-lookup, \d+ times, \d+ of them healed by the guard", said), said
    assert number(said, "requests") == 16
    assert number(said, "tokens loaded") > 0


def test_it_goes_on_gently_until_ctrl_c(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_until_said("The workload repeats gently until Ctrl-C.")
        served = run.get("/api/overview")["totals"]["requests"]
        until(lambda: run.get("/api/overview")["totals"]["requests"] > served)
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 0
        assert "nothing is left running" in run.said()
        assert "Traceback" not in run.said()


@pytest.mark.parametrize("after", ["Starting the tracer", "Starting a real vLLM engine"])
def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path, after: str) -> None:
    with demo(tmp_path) as run:
        run.wait_until_said(after)
        time.sleep(1.0)
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 0
        assert "Traceback" not in run.said()


def test_a_killed_demo_takes_its_children_along(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_until_said("Starting a real vLLM engine")
        time.sleep(1.0)
        run.process.kill()
        run.process.wait()
        until(lambda: children_left(tmp_path) == [], why=lambda: children_left(tmp_path))


def test_a_killed_child_is_told(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_until_said("until Ctrl-C.")
        run.tracer().kill()
        assert run.finish() == 1
        assert "Error: the tracer ended unexpectedly, by signal SIGKILL" in run.said()


@pytest.mark.parametrize("plain", [False, True], ids=["engine", "plain engine"])
def test_an_engine_that_is_killed_is_told_and_fails_the_demo(tmp_path: Path, plain: bool) -> None:
    with demo(tmp_path, "--once") as run:
        run.wait_until_said("Starting a real vLLM engine")
        until(lambda: len(engines(run, plain)) == 1)
        os.kill(engines(run, plain)[0], signal.SIGKILL)
        assert run.finish() == 1
        name = "plain engine" if plain else "engine"
        assert f"Error: the {name} ended unexpectedly, by signal SIGKILL" in run.said()


def engines(run: Demo, plain: bool) -> list[int]:
    found = []
    for child in psutil.Process(run.process.pid).children():
        command = child.cmdline()
        if "kvtrail.connector.demo.engine" in command and json.loads(command[-1])["plain"] == plain:
            found.append(child.pid)
    return found


def test_a_second_demo_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_until_said("The dashboard is at")
        (tmp_path / "second").mkdir()
        second = Demo(tmp_path / "second", "--folder", str(tmp_path / ".demo"))
        assert second.finish() == 1
        assert f"Error: another demo works in {tmp_path / '.demo'}" in second.said()
        assert run.process.poll() is None


@pytest.mark.parametrize("option", ["--grpc-port", "--http-port", "--dashboard-port", "--metrics-port"])
def test_a_taken_port_is_told(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = Demo(tmp_path, option, str(port))
        assert run.finish() == 1
    assert (
        f"Error: port {port} on 127.0.0.1 is taken (Address already in use); choose another with {option}" in run.said()
    )
