"""Real tracers and dashboards as processes, and waiting for them."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from forked_commands import Forked

SLOW_S = 36_000.0
"""A time-out that is never reached, where a call wants one: the watchdog ends a test that hangs."""
PLAIN: Any = {"timeout": SLOW_S, "verify": False}
"""How httpx asks a server without TLS: reading all authorities takes ten times as long as the answer."""

_reserved: deque[socket.socket] = deque()
MAX_RESERVED = 200
"""How many of the latest ports of `free_port` are kept from others: each costs a descriptor."""


def reserved_port() -> socket.socket:
    """A socket with a port that no other process is given while it is open.

    It is bound and never listens. Linux lets a server listen beside it, since both set SO_REUSEADDR, as servers do; to others
    that look for a free port, the kernel included, this one is taken.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def port_of(reserved: socket.socket) -> int:
    return int(reserved.getsockname()[1])


def free_port() -> int:
    """A port for a server that sets SO_REUSEADDR; it is reserved, so no other process takes it meanwhile."""
    _reserved.append(reserved_port())
    if len(_reserved) > MAX_RESERVED:
        _reserved.popleft().close()
    return port_of(_reserved[-1])


@dataclass
class Tracer:
    """`kvtrail serve` in a process of its own."""

    process: Forked
    grpc_port: int
    http_port: int
    store: Path
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def get(self, path: str, **params: str | int) -> Any:
        """What it answers, out of JSON."""
        response = httpx.get(f"{self.url}{path}", params=params, **PLAIN)
        response.raise_for_status()
        return response.json()

    def read(self, path: str) -> str:
        """What it answers, as text."""
        response = httpx.get(f"{self.url}{path}", **PLAIN)
        response.raise_for_status()
        return response.text

    def post(self, body: bytes) -> None:
        """Send it spans over HTTP: an encoded `ExportTraceServiceRequest`."""
        headers = {"content-type": "application/x-protobuf"}
        httpx.post(f"{self.url}/v1/traces", content=body, headers=headers, **PLAIN).raise_for_status()

    def end(self) -> None:
        """End it, if it has not ended."""
        self.process.terminate()
        self.process.wait()

    def restart(self) -> None:
        """Start one that was killed again: the same ports and the same store."""
        self.process = Forked(self.process.args, out=self.log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def listening(
    folder: Path,
    *arguments: str,
    host: str = "127.0.0.1",
    config: Path | None = None,
    store: Path | None = None,
    grpc_port: int | None = None,
    http_port: int | None = None,
    limits: Mapping[str, int] | None = None,
) -> Tracer:
    """Start a tracer and wait until it listens over HTTP; `config` is the file of `kvtrail --config`, and `limits` are what
    of its `Limits` is other than it is."""
    grpc_port, http_port = grpc_port or free_port(), http_port or free_port()
    store = store or folder / "kvtrail.db"
    log = folder / f"tracer-{http_port}.log"
    ports = ["--host", host, "--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    before = [] if config is None else ["--config", str(config)]
    log.unlink(missing_ok=True)
    process = Forked([*before, "serve", "--store", str(store), *ports, *arguments], out=log, limits=limits)
    tracer = Tracer(process, grpc_port, http_port, store, log)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection((host, http_port)).close()
        except OSError:
            return False
        return True

    _wait_for(listens, tracer)
    return tracer


def serve(
    folder: Path,
    *arguments: str,
    store: Path | None = None,
    grpc_port: int | None = None,
    http_port: int | None = None,
    limits: Mapping[str, int] | None = None,
) -> Tracer:
    """Start a tracer and wait until it answers. The histories of the tests are of last year: retained nevertheless."""
    retained = ("--retain-hours", "1e6")
    tracer = listening(
        folder, *retained, *arguments, store=store, grpc_port=grpc_port, http_port=http_port, limits=limits
    )
    _wait_for(lambda: alive(tracer), tracer)
    return tracer


@contextlib.contextmanager
def dashboard(folder: Path, tracer_url: str, *arguments: str, ca: Path | None = None) -> Iterator[str]:
    """A dashboard that shows a tracer, and its address; it ends with the context. `ca`: the authority of its certificate, if
    it has one."""
    port = free_port()
    log = folder / f"dashboard-{port}.log"
    url = f"{'http' if ca is None else 'https'}://127.0.0.1:{port}"
    trusted = True if ca is None else ssl.create_default_context(cafile=ca)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/_stcore/health", verify=trusted, timeout=None).is_success
        except httpx.TransportError:
            return False

    command = [sys.executable, "-m", "kvtrail", "dashboard", "--tracer", tracer_url, "--port", str(port), *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        until(answers, why=log.read_text)
        yield url
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class SharedDashboard:
    """A dashboard for many tests. It shows the tracer that listens on its `http_port`, one after the other.

    A page that is opened later knows nothing of earlier tracers: Streamlit keeps what was shown with each page's session.
    """

    url: str
    http_port: int
    traces: str
    """Where its links to traces lead."""

    @contextlib.contextmanager
    def showing(self, folder: Path, *arguments: str) -> Iterator[Tracer]:
        """A tracer of its own with an empty store and these options of `kvtrail serve`, which this dashboard shows."""
        tracer = serve(folder, *arguments, http_port=self.http_port)
        try:
            yield tracer
        finally:
            tracer.kill()


@contextlib.contextmanager
def shared_dashboard(folder: Path) -> Iterator[SharedDashboard]:
    traces = "http://jaeger.example:16686/trace/{trace_id}"
    with contextlib.closing(reserved_port()) as reserved:
        http_port = port_of(reserved)
        with dashboard(folder, f"http://127.0.0.1:{http_port}", "--traces", traces) as url:
            yield SharedDashboard(url, http_port, traces)


def _wait_for(ready: Callable[[], bool], tracer: Tracer) -> None:
    try:
        until(ready, why=tracer.log.read_text)
    except BaseException:
        tracer.end()
        raise


def alive(tracer: Tracer) -> bool:
    assert tracer.process.poll() is None, tracer.log.read_text()
    try:
        return httpx.get(f"{tracer.url}/api/health", **PLAIN).is_success
    except httpx.TransportError:
        return False


def until(true: Callable[[], object], *, why: Callable[[], object] = lambda: "still not true") -> None:
    """Wait for something that another process does, until the watchdog ends the test; then `why` says what was missing."""
    try:
        while not true():
            time.sleep(0.05)
    except pytest.fail.Exception as ended:
        pytest.fail(f"{ended}: {why()}")
