"""A bounded number of time series: label values come from outside, so only a limited number of them get their own series.

vLLM generates a random engine id unless one is configured, so every restart may bring a new one. The series of an engine
that has not reported for long are removed, which frees a slot for another engine.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from kvtrail.tracer.serve.metrics.durations import Durations

OTHER = "other"
"""The label value that all further names share."""
MAX_ENGINES = 64
MAX_CONNECTORS = 32


Metric = Counter | Gauge | Histogram | Durations


class Series:
    """The series of metrics with `engine` as their first label: created on first use, removed with their engine."""

    def __init__(self) -> None:
        self._engines: set[str] = set()
        self._connectors: set[str] = set()
        self._by_engine: dict[str, dict[tuple[Any, ...], Any]] = {}

    def connector(self, name: str) -> str:
        """The label of a connector."""
        return _label(name, self._connectors, MAX_CONNECTORS)

    def has(self, metric: Metric, engine: str, *labels: str) -> bool:
        """Whether the engine has a series with these further labels."""
        return (metric, *labels) in self._by_engine.get(self._engine(engine), {})

    def at(self, metric: Metric, engine: str, *labels: str) -> Any:
        """The engine's series with these further labels, in the metric's order."""
        known = self._by_engine.get(engine)
        if known is None:
            engine = self._engine(engine)
            known = self._by_engine.setdefault(engine, {})
        key = (metric, *labels)
        series = known.get(key)
        if series is None:
            series = known[key] = metric.labels(engine, *labels)
        return series

    def has_own(self, engine: str) -> bool:
        """Whether this engine has its own series, or can get them now."""
        return self._engine(engine) == engine

    def remove(self, metric: Metric, engine: str, *labels: str) -> None:
        """Remove one series, if it exists."""
        if self._by_engine.get(engine, {}).pop((metric, *labels), None) is not None:
            metric.remove(engine, *labels)

    def retire(self, engine: str) -> None:
        """Remove all series of an engine. The shared series `other` stay."""
        for metric, *labels in self._by_engine.pop(engine, {}):
            metric.remove(engine, *labels)
        self._engines.discard(engine)

    def _engine(self, name: str) -> str:
        return _label(name, self._engines, MAX_ENGINES)


def _label(name: str, known: set[str], limit: int) -> str:
    """The name itself if it is known or the limit is not reached, or else `other`."""
    if name not in known:
        if len(known) >= limit:
            return OTHER
        known.add(name)
    return name
