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
        raise StoreInUse(f"a tracer uses the store {path}; stop it first") from None
    writer.forget_derived()
    # The time is about that at which the batch that is judged next arrived: the end of its last span.
    now_ns = writer.ended_ns(writer.beginning(after=0) + 1)
    pipeline = Pipeline(writer, Metrics(), max_requests=MAX_REQUESTS, resume=False, clock=lambda: now_ns)
    spans = pipeline.spans_behind

    def judged(number: int) -> None:
        nonlocal now_ns
        now_ns = max(now_ns, writer.ended_ns(number + 1))
        pipeline.tidy()

    try:
        pipeline.recovery.run(judged)
        now_ns += GRACE_NS + 1  # missing events will not arrive any more
        pipeline.tidy()
        while writer.fold(some=True):
            pass
    finally:
        pipeline.close()
    return spans
