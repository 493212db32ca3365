"""Ledger and rules together: how many events a second one core can judge, and how long one takes."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from history import history

from tracer.detect import Detector

STORY = (
    "L 749 c0 h256 -> 256\nA 256\nS 256+48\nP\nL 760 c288 h512 -> 224\n"
    + "L 760 c288 h512 -> 224\n" * 20
    + "A 224\nS 512+48\nend"
)


def main() -> None:
    events = [event for n in range(2000) for event in history(STORY, request=f"r-{n}")]
    times = []
    for _ in range(7):
        detector = Detector()
        started = time.perf_counter()
        detector.feed(events)
        times.append((time.perf_counter() - started) / len(events) * 1e6)
    print(
        f"ledger and rules: {statistics.median(times):.2f} us an event ({min(times):.2f} to {max(times):.2f},"
        f" {len(times)} rounds of {len(events):,} events), {1e6 / statistics.median(times):,.0f} events/s"
    )


if __name__ == "__main__":
    main()
