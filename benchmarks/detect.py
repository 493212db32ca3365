"""The detector: how many events per second one core can judge, and how long one takes."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from history import history

from kvtrail.tracer.detect.detector import Detector

STORY = (
    "L 749 c0 h256 -> 256\nA 256\nS 256+48\nP\nL 760 c288 h512 -> 224\n"
    + "L 760 c288 h512 -> 224\n" * 20
    + "A 224\nS 512+48\nend"
)


DETAILED = (
    "L 749 c0 h256 -> 256\nA 256 [1-9]\nplan load 0+256 [1-8]\nS 256+48 [1-10]\n"
    + "".join(f"S {n}+1 []\nplan store {n // 32 * 32 - 64}+32 [{n // 32 - 1}]\n" for n in range(290, 320))
    + "end"
)
"""Every step with its blocks, and a plan in each: more than an engine records."""


def main() -> None:
    for name, story in (("basic", STORY), ("detailed", DETAILED)):
        measure(name, story)


def measure(name: str, story: str) -> None:
    """Judge the same story of many requests, several times."""
    events = [event for n in range(2000) for event in history(story, request=f"r-{n}")]
    for number, event in enumerate(events):
        event.sequence = number  # of one recorder
    times = []
    for _ in range(7):
        detector = Detector()
        started = time.perf_counter()
        detector.feed(events)
        times.append((time.perf_counter() - started) / len(events) * 1e6)
    print(
        f"detector, {name}: {statistics.median(times):.2f} us an event ({min(times):.2f} to {max(times):.2f},"
        f" {len(times)} rounds of {len(events):,} events), {1e6 / statistics.median(times):,.0f} events/s"
    )


if __name__ == "__main__":
    main()
