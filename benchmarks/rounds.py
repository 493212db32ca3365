"""Pairs of rounds, and how their ratio is told."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx


def tell(what: str, ours: Sequence[float], theirs: Sequence[float], unit: str, names: tuple[str, str]) -> None:
    """Print both medians, and the ratio of the pairs: its median, its quartiles, and how many pairs there were."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"{what}: {names[0]} {statistics.median(ours):,.2f} {unit}, {names[1]} {statistics.median(theirs):,.2f} {unit};"
        f" ratio {statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f}, {len(ratios)} pairs)"
    )


def printed(checkout: Path, program: str, *arguments: str) -> float:
    """The number that a benchmark of ours prints when a process of its own runs it over this checkout of kvtrail."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, program, *arguments]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@contextmanager
def answering(url: str, *arguments: str, stderr: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A real `kvtrail` with these arguments, from when it answers at an address until it is ended."""
    command = [sys.executable, "-m", "kvtrail", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        while True:
            assert process.poll() is None, f"kvtrail {arguments[0]} has ended"
            try:
                httpx.get(url, trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.02)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)  # it may be stopped in its tracks
        process.terminate()
        process.wait()


@contextmanager
def tracer(folder: Path, grpc_port: int, http_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A real `kvtrail serve`."""
    ports = ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    url, store = f"http://127.0.0.1:{http_port}/api/health", str(folder / "bench.db")
    with answering(url, "serve", "--store", store, *ports, stderr=subprocess.DEVNULL) as process:
        yield process
