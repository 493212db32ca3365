"""Durations that are observed a batch at a time show what prometheus_client's own histogram shows."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.exposition import generate_latest

from kvtrail.tracer.serve.metrics.durations import Duration, Durations

BOUNDS_S = (0.25, 0.5, 1.0)
FINE_NS = 2**-6 * 1e9
"""Sums of its multiples are exact, in whatever order they are added."""
TRACES = ("a" * 32, "b" * 32, "")
LENGTHS = st.integers(-4, 100).map(lambda n: int(n * FINE_NS))


@given(st.lists(st.tuples(st.sampled_from("xy"), st.lists(st.tuples(LENGTHS, st.sampled_from(TRACES)), max_size=5))))
def test_they_look_like_a_histogram(batches: list[tuple[str, list[Duration]]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    durations = Durations("t_seconds", "Text.", ("of",), namespace="n", registry=ours, buckets=BOUNDS_S)
    histogram = Histogram("t_seconds", "Text.", ("of",), namespace="n", registry=theirs, buckets=BOUNDS_S)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: 1.0)
        for label, batch in batches:
            durations.labels(label).observe(batch)
            series = histogram.labels(label)
            for lasted_ns, trace_id in batch:
                series.observe(max(0, lasted_ns) / 1e9, {"trace_id": trace_id} if trace_id else None)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_series_is_removed_and_begins_again() -> None:
    registry = CollectorRegistry()
    durations = Durations("t_seconds", "Text.", ("of",), namespace="n", registry=registry, buckets=BOUNDS_S)
    durations.labels("x").observe([(1, "")])
    durations.remove("x")
    assert registry.get_sample_value("n_t_seconds_count", {"of": "x"}) is None
    durations.labels("x").observe([(1, "")])
    assert registry.get_sample_value("n_t_seconds_count", {"of": "x"}) == 1
