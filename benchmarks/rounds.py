"""Pairs of rounds, and how their ratio is told."""

from __future__ import annotations

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


@contextmanager
def tracer(folder: Path, grpc_port: int, http_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A real `kvtrail serve`."""
    ports = ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tracer.cli", "serve", "--store", str(folder / "bench.db"), *ports],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            try:
                httpx.get(f"http://127.0.0.1:{http_port}/api/health")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield process
    finally:
        process.kill()  # it may be stopped in its tracks
        process.wait()
