"""Real dashboards as processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from processes import free_port, until


@contextmanager
def dashboards(folder: Path) -> Iterator[Callable[[str], str]]:
    """Gives what starts a dashboard for a tracer's address, and returns its own; each is ended by its id at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(tracer_url: str) -> str:
        port, log = free_port(), folder / f"dashboard-{len(started)}.log"
        command = [sys.executable, "-m", "kvtrail", "dashboard", "--tracer", tracer_url, "--port", str(port)]
        with log.open("wb") as file:
            started.append(subprocess.Popen(command, stdout=file, stderr=file))
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/_stcore/health"), why=log.read_text)
        return url

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def answers(url: str) -> bool:
    """Whether somebody answers there."""
    try:
        return httpx.get(url, timeout=1).is_success
    except httpx.TransportError:
        return False
