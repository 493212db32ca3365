"""Real tracers as processes, and waiting for them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

SLOW_S = 240.0
"""What a slow machine needs at most; only what hangs takes so long."""


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to connections: none of these takes it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class Tracer:
    """A `kvtrail serve` process."""

    process: subprocess.Popen[bytes]
    grpc_port: int
    http_port: int
    store: Path
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def get(self, path: str, **params: str | int) -> Any:
        """What it answers, out of JSON."""
        response = httpx.get(f"{self.url}{path}", params=params, timeout=SLOW_S)
        response.raise_for_status()
        return response.json()

    def read(self, path: str) -> str:
        """What it answers, as text."""
        response = httpx.get(f"{self.url}{path}", timeout=SLOW_S)
        response.raise_for_status()
        return response.text

    def post(self, body: bytes) -> None:
        """Send it spans over HTTP: an encoded `ExportTraceServiceRequest`."""
        headers = {"content-type": "application/x-protobuf"}
        httpx.post(f"{self.url}/v1/traces", content=body, headers=headers, timeout=SLOW_S).raise_for_status()

    def end(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(SLOW_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def serve(folder: Path, *arguments: str, store: Path | None = None, grpc_port: int | None = None) -> Tracer:
    """Start a tracer and wait until it answers."""
    grpc_port, http_port = grpc_port or free_port(), free_port()
    store = store or folder / "kvtrail.db"
    log = folder / f"tracer-{http_port}.log"
    ports = ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            # The histories of the tests are of last year: retained nevertheless.
            [
                sys.executable,
                "-m",
                "kvtrail",
                "serve",
                "--store",
                str(store),
                "--retain-hours",
                "1e6",
                *ports,
                *arguments,
            ],
            stdout=file,
            stderr=file,
            env=os.environ,
        )
    tracer = Tracer(process, grpc_port, http_port, store, log)
    try:
        until(lambda: alive(tracer), why=log.read_text)
    except BaseException:
        tracer.end()
        raise
    return tracer


def alive(tracer: Tracer) -> bool:
    assert tracer.process.poll() is None, tracer.log.read_text()
    try:
        return httpx.get(f"{tracer.url}/api/health", timeout=1).is_success
    except httpx.TransportError:
        return False


def until(
    true: Callable[[], object], *, seconds: float = SLOW_S, why: Callable[[], object] = lambda: "still not true"
) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
