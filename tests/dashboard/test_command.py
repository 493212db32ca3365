"""`kvtrail dashboard`: its help, its complaints, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from click.testing import CliRunner
from processes import SLOW_S, free_port, until
from streamlit.starlette import App

from kvtrail.dashboard.command import dashboard, streamlit_options


def test_help_has_defaults_and_an_example() -> None:
    result = CliRunner().invoke(dashboard, ["--help"])
    assert result.exit_code == 0
    assert "Example: kvtrail dashboard" in result.output
    assert "http://127.0.0.1:4318" in result.output
    assert "8501" in result.output


def test_a_port_that_is_taken_is_named_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(dashboard, ["--port", str(port)])
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.output
    assert "--port" in result.output


@pytest.mark.parametrize("address", ["127.0.0.1:4318", "grpc://127.0.0.1:4317"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    result = CliRunner().invoke(dashboard, ["--tracer", address])
    assert result.exit_code == 2
    assert "write http://HOST:PORT" in result.output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost.example"])
def test_nobody_listens_beyond_this_machine_by_mistake(host: str) -> None:
    """Not even with the token of the tracer, which browsers do not show."""
    result = CliRunner().invoke(dashboard, ["--host", host])
    assert result.exit_code == 2
    assert "--insecure" in result.output


def test_beyond_this_machine_it_listens_where_this_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("os.environ", os.environ.copy())
    monkeypatch.setattr(App, "run", lambda app, config: started.append(config["server.address"]))
    for options in (
        ["--host", "0.0.0.0", "--insecure"],
        ["--host", "127.0.0.1"],
        ["--host", "localhost"],
    ):
        result = CliRunner().invoke(dashboard, [*options, "--port", str(free_port())])
        assert result.exit_code == 0, result.output
    assert started == ["0.0.0.0", "127.0.0.1", "localhost"]


@pytest.mark.parametrize("template", ["http://jaeger:16686/trace/", "jaeger/{trace_id}", "javascript:{trace_id}"])
def test_a_place_of_traces_that_is_none_is_refused(template: str) -> None:
    for result in (
        CliRunner().invoke(dashboard, ["--traces", template]),
        CliRunner().invoke(dashboard, [], env={"KVTRAIL_DASHBOARD_TRACES": template}),
    ):
        assert result.exit_code == 2
        assert "is not an address with {trace_id} in it" in result.output


def test_nothing_is_reported_to_anyone() -> None:
    given = streamlit_options("127.0.0.1", 8501)
    assert given["browser.gatherUsageStats"] is False
    assert given["server.headless"] is True


def test_ctrl_c_ends_it_cleanly_and_frees_the_port() -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtrail", "dashboard", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: answers(port))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SLOW_S)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert "Traceback" not in output
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/_stcore/health", timeout=10, trust_env=False).is_success
    except httpx.TransportError:
        return False
