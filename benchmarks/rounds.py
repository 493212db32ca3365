"""What benchmarks share: printing the ratio of pairs of rounds, and running kvtrail as a process."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

CHROMIUM: dict[str, Any] = {
    "executable_path": "/usr/bin/chromium",
    "args": ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
}
"""How playwright launches the browser."""


def print_ratio(what: str, ours: Sequence[float], theirs: Sequence[float], unit: str, names: tuple[str, str]) -> None:
    """Print both medians, and of the ratios of the pairs the median, the quartiles and the number."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"{what}: {names[0]} {statistics.median(ours):,.2f} {unit}, {names[1]} {statistics.median(theirs):,.2f} {unit};"
        f" ratio {statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f}, {len(ratios)} pairs)"
    )


def compare(
    what: str, program: str, sides: Mapping[str, tuple[Path, Sequence[object]]], rounds: int, unit: str
) -> None:
    """Run a benchmark that prints a number alternately for two sides, each in its own process, and print the ratio. A side
    has a name, a checkout of kvtrail, whose copy of the program runs, and arguments."""
    numbers: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, (checkout, arguments) in sides.items():
            environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
            command = [sys.executable, str(checkout / "benchmarks" / Path(program).name), *map(str, arguments)]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            numbers[name].append(float(run.stdout))
    ours, theirs = sides
    print_ratio(what, numbers[ours], numbers[theirs], unit, (ours, theirs))


@contextmanager
def answering(
    url: str, *arguments: str, stderr: int | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a Python module with these arguments, from the moment it answers at the address."""
    command = [sys.executable, "-m", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
    try:
        while True:
            assert process.poll() is None, f"{' '.join(arguments[:2])} has ended"
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
    with answering(url, "kvtrail", "serve", "--store", store, *ports, stderr=subprocess.DEVNULL) as process:
        yield process
