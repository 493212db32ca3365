"""Time series that stay few: what spans say of themselves becomes a label, but only so many names are told apart.

Engine ids are random in vLLM unless one is configured, so that every restart brings a new one. The series of an engine
are removed when nothing has been heard of it for long, and its place is free again.
"""

from __future__ import annotations

from typing import Any

from prometheus_client.metrics import MetricWrapperBase

OTHER = "other"
"""The label of all names for which there is no place."""
MOST_ENGINES = 64
MOST_CONNECTORS = 32


class Few:
    """Names from outside, of which at most `most` are told apart at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def name(self, name: str) -> str:
        """The name as a label: itself while there is a place for it, or `other`."""
        if name not in self._names:
            if len(self._names) >= self._most:
                return OTHER
            self._names.add(name)
        return name

    def drop(self, name: str) -> None:
        """Give its place free."""
        self._names.discard(name)


class Series:
    """The series of metrics whose first label is `engine`; made when they are first needed, removed with their engine."""

    def __init__(self) -> None:
        self.connectors = Few(MOST_CONNECTORS)
        self._engines = Few(MOST_ENGINES)
        self._held: dict[str, dict[tuple[Any, ...], Any]] = {}
        self._pairs: set[tuple[str, str]] = set()

    def begins(self, engine: str, connector: str) -> bool:
        """Whether this connector of this engine is heard of for the first time."""
        if (engine, connector) in self._pairs:
            return False
        pair = (self._engines.name(engine), self.connectors.name(connector))
        if pair in self._pairs:
            return False
        self._pairs.add(pair)
        return True

    def at(self, metric: MetricWrapperBase, engine: str, *labels: str) -> Any:
        """The series of an engine with these further labels, in the metric's order."""
        held = self._held.get(engine)
        if held is None:
            engine = self._engines.name(engine)
            held = self._held.setdefault(engine, {})
        key = (metric, *labels)
        series = held.get(key)
        if series is None:
            series = held[key] = metric.labels(engine, *labels)
        return series

    def place(self, engine: str) -> bool:
        """Whether this engine is told apart from others."""
        return self._engines.name(engine) == engine

    def drop(self, metric: MetricWrapperBase, engine: str, *labels: str) -> None:
        """Remove one series."""
        if self._held.get(engine, {}).pop((metric, *labels), None) is not None:
            metric.remove(engine, *labels)

    def retire(self, engine: str) -> None:
        """Remove all series of an engine. Those that share `other` stay."""
        for metric, *labels in self._held.pop(engine, {}):
            metric.remove(engine, *labels)
        self._pairs = {pair for pair in self._pairs if pair[0] != engine}
        self._engines.drop(engine)
