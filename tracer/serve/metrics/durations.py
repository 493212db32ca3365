"""Histograms of durations that are observed a batch at a time.

They give the same output as prometheus_client's `Histogram`, which searches its buckets, takes two locks and checks an
exemplar for each value: this would be the largest part of the cost of counting an event.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

TRACE_ID_LENGTH = 32

Duration = tuple[int, str]
"""Nanoseconds, and the id of their trace, which becomes the exemplar."""


class DurationSeries:
    """The durations with the same labels."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * len(bounds_s)
        self._exemplars: list[Exemplar | None] = [None] * len(bounds_s)
        self._sum_s = 0.0
        self._lock = threading.Lock()

    def observe(self, durations: Iterable[Duration]) -> None:
        """Add durations; one below 0 counts as 0."""
        now_s = time.time()
        latest: dict[int, tuple[str, float]] = {}
        with self._lock:
            for lasted_ns, trace_id in durations:
                lasted_s = max(0, lasted_ns) / 1e9
                place = bisect_left(self._bounds_s, lasted_s)
                self._counts[place] += 1
                self._sum_s += lasted_s
                if len(trace_id) == TRACE_ID_LENGTH:
                    latest[place] = trace_id, lasted_s
            for place, (trace_id, lasted_s) in latest.items():
                self._exemplars[place] = Exemplar({"trace_id": trace_id}, lasted_s, now_s)

    def show(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the series to its family."""
        with self._lock:
            counts, exemplars, sum_s = list(accumulate(self._counts)), list(self._exemplars), self._sum_s
        buckets = [
            (floatToGoString(bound), count) if exemplar is None else (floatToGoString(bound), count, exemplar)
            for bound, count, exemplar in zip(self._bounds_s, counts, exemplars, strict=True)
        ]
        family.add_metric(labels, buckets, sum_s)


class Durations(Collector):
    """A histogram in seconds. It has the series that were requested with `labels`."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str],
        *,
        namespace: str,
        registry: CollectorRegistry,
        buckets: Sequence[float],
    ) -> None:
        self._name, self._documentation, self._labelnames = f"{namespace}_{name}", documentation, labelnames
        self._bounds_s = [*buckets, inf]
        self._series: dict[tuple[str, ...], DurationSeries] = {}
        registry.register(self)

    def labels(self, *values: str) -> DurationSeries:
        """The series with these labels."""
        return self._series.setdefault(values, DurationSeries(self._bounds_s))

    def remove(self, *values: str) -> None:
        """Remove a series."""
        self._series.pop(values, None)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, series in list(self._series.items()):
            series.show(family, labels)
        yield family
