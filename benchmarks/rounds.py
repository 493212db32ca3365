"""What benchmarks share: printing the ratio of pairs of rounds, and running kvtrail as a process."""

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


def print_ratio(what: str, ours: Sequence[float], theirs: Sequence[float], unit: str, names: tuple[str, str]) -> None:
    """Print both medians, and of the ratios of the pairs the median, the quartiles and the number."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"{what}: {names[0]} {statistics.median(ours):,.2f} {unit}, {names[1]} {statistics.median(theirs):,.2f} {unit};"
        f" ratio {statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f}, {len(ratios)} pairs)"
    )


def printed(checkout: Path, program: str, *arguments: str) -> float:
    """The number that a benchmark prints when it runs in its own process with this checkout of kvtrail."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, program, *arguments]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@contextmanager
def answering(url: str, *arguments: str, stderr: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A `kvtrail` process with these arguments, from the moment it answers at the address."""
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
        process.send_signal(signal.SIGCONT)  # it may have been stopped
        process.terminate()
        process.wait()


@contextmanager
def tracer(folder: Path, grpc_port: int, http_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A `kvtrail serve` process."""
    ports = ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    url, store = f"http://127.0.0.1:{http_port}/api/health", str(folder / "bench.db")
    with answering(url, "serve", "--store", store, *ports, stderr=subprocess.DEVNULL) as process:
        yield process
