"""Rebuilds everything that a store derives from its log: rows, lanes, totals, sums and findings."""

from __future__ import annotations

from pathlib import Path

from kvtrail.tracer.detect.detector import GRACE_NS
from kvtrail.tracer.serve.limits import MAX_REQUESTS
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import StoreInUse
from kvtrail.tracer.store.sqlite.store import SqliteWriter


def rebuild(path: Path) -> int:
    """Drop derived data, and judge the log again; returns the number of its spans.

    If it is interrupted, the next start of a tracer continues it.

    Raises:
        StoreInUse: a tracer uses the store.
        StoreError: it cannot be read or written.
    """
    try:
        writer = SqliteWriter(path)
    except StoreInUse:
        raise StoreInUse(f"a tracer uses the store {path}; end it first") from None
    writer.forget_derived()
    clock = _TimeOfLog(writer.ended_ns(writer.beginning(after=0) + 1))
    pipeline = Pipeline(writer, Metrics(), max_requests=MAX_REQUESTS, resume=False, clock=clock)
    spans = pipeline.spans_behind

    def judged(number: int) -> None:
        clock.now_ns = max(clock.now_ns, writer.ended_ns(number + 1))
        pipeline.tidy()

    try:
        pipeline.resume(judged)
        clock.now_ns += GRACE_NS + 1  # missing events will not arrive any more
        pipeline.tidy()
        while writer.fold(some=True):
            pass
    finally:
        pipeline.close()
    return spans


class _TimeOfLog:
    """The approximate arrival time of the batch that is judged next: the end of its last span."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns
