"""Metrics of what the connectors do, by engine and connector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from kvtrail.tracer.detect.efficiency import Admission, Wait
from kvtrail.tracer.detect.transfer_times import Transfers
from kvtrail.tracer.model.events import (
    Alloc,
    Event,
    Evict,
    Load,
    LoadError,
    Lookup,
    Preempt,
    Received,
    RequestEnd,
    Store,
)
from kvtrail.tracer.model.semconv import Kind
from kvtrail.tracer.serve.series import OTHER, Series

CALL_SECONDS = (1e-5, 1e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 2.5, 10.0)
TRANSFER_SECONDS = (1e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
OUTCOMES = frozenset({"stopped", "length_capped", "aborted", "ignored", "error", "repetition", "unknown"})
"""vLLM's finish statuses; what a newer vLLM invents is `other`."""
UNSPECIFIED = "external_unspecified"
"""vLLM's word for a source that the connector does not name."""
SOURCES = frozenset({"device", "host", "p2p", "disk", UNSPECIFIED})
"""vLLM's words for where cached tokens come from."""
FIRST, RESUMED = "first", "resumed"


class Work:
    """Counts what the events say. Labels are `engine` and `connector`, and few more."""

    def __init__(self, registry: CollectorRegistry, series: Series) -> None:
        self._series = series
        self._transfers = Transfers()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"kvtrail_{name}", text, ("engine", "connector", *labels), registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(
                f"kvtrail_{name}", text, ("engine", "connector"), buckets=tuple(buckets), registry=registry
            )

        self.lookups = counter("lookups", "Lookups, by whether they were answered, and how.", "answer")
        self.lookup_tokens = counter("lookup_tokens_returned", "Tokens that lookups returned to the scheduler.")
        self.admissions = counter("admissions", "Lookups whose answer led to an allocation.", "epoch")
        self.queried = counter("queried_tokens", "Tokens for which the connector was asked at admissions.", "epoch")
        self.hits = counter("hit_tokens", "External tokens for which blocks were allocated.", "epoch", "source")
        self.local = counter("local_hit_tokens", "Tokens that vLLM's prefix cache held at admissions.", "epoch")
        self.recomputed = counter(
            "recomputed_tokens", "Tokens that the connector held at admissions and the engine computed anyway.", "epoch"
        )
        self.load_tokens = counter("load_tokens", "Tokens loaded from the connector's store.")
        self.load_bytes = counter("load_bytes", "Bytes loaded from the connector's store.")
        self.load_failures = counter("load_failures", "Loads that failed, by the report that says so.", "report")
        self.store_tokens = counter("store_tokens", "Tokens copied to the connector's store.")
        self.store_bytes = counter("store_bytes", "Bytes copied to the connector's store.")
        self.evicted = counter("evicted_chunks", "Chunks evicted from the connector's store.")
        self.preemptions = counter("preemptions", "Preemptions of requests.")
        self.requests = counter("requests", "Requests that ended, by outcome.", "outcome")
        self.errors = counter("connector_errors", "Calls of the connector that raised.", "call")
        self.healed = counter("lookups_healed", "Lookup answers that the guard replaced.")
        self.lookup_seconds = histogram(
            "lookup_duration_seconds", "Time that a lookup took on the scheduler's thread.", CALL_SECONDS
        )
        self.wait_seconds = histogram(
            "wait_duration_seconds",
            "Time that requests waited for an asynchronous load, from its allocation.",
            TRANSFER_SECONDS,
        )
        self.load_seconds = histogram("load_duration_seconds", "Time that loads took.", TRANSFER_SECONDS)
        self.store_seconds = histogram("store_duration_seconds", "Time that stores took.", TRANSFER_SECONDS)

    def begin(self, engine: str, connector: str) -> None:
        """Let what may stay at 0 for long begin there: a series that is born at 1 has no increase to see."""
        connector = self._series.connectors.name(connector)
        moved = (self.load_tokens, self.load_bytes, self.store_tokens, self.store_bytes)
        for metric in (self.healed, self.preemptions, self.evicted, self.lookup_tokens, *moved):
            self._series.at(metric, engine, connector)
        for epoch in (FIRST, RESUMED):
            for metric in (self.admissions, self.queried, self.local, self.recomputed):
                self._series.at(metric, engine, connector, epoch)
            self._series.at(self.hits, engine, connector, epoch, UNSPECIFIED)
        for answer in ("hit", "miss", "later", "error"):
            self._series.at(self.lookups, engine, connector, answer)
        for call in (Kind.LOOKUP, Kind.ALLOC):
            self._series.at(self.errors, engine, connector, call)
        for report in ("blocks", "completion"):
            self._series.at(self.load_failures, engine, connector, report)
        for outcome in ("stopped", "length_capped", "aborted"):
            self._series.at(self.requests, engine, connector, outcome)

    def observe(self, event: Event) -> None:
        """Count one event."""
        if event.error is not None:
            self._at(self.errors, event, event.kind).inc()
        match event:
            case Lookup():
                self._lookup(event)
            case Alloc() if event.error is None and event.allocated:
                for source, tokens in sources(event).items():
                    self._at(self.hits, event, _epoch(event), source).inc(tokens)
            case Load():
                self._copied(event, self.load_tokens, self.load_bytes, self.load_seconds)
            case Store():
                self._copied(event, self.store_tokens, self.store_bytes, self.store_seconds)
            case LoadError():
                self._at(self.load_failures, event, "blocks").inc()
            case Received() if event.failed:
                self._at(self.load_failures, event, "completion").inc()
            case Evict():
                self._at(self.evicted, event).inc()
            case Preempt():
                self._at(self.preemptions, event).inc()
            case RequestEnd():
                outcome = event.outcome or "unknown"
                self._at(self.requests, event, outcome if outcome in OUTCOMES else OTHER).inc()
        if (transfer := self._transfers.enter(event)) is not None:
            self._time(self.load_seconds if transfer.is_load else self.store_seconds, event, transfer.lasted_ns)

    def tell(self, fact: Admission | Wait) -> None:
        """Count what an admission was worth, or time a wait."""
        if isinstance(fact, Wait):
            self._time(self.wait_seconds, fact.event, fact.lasted_ns)
            return
        lookup, alloc = fact.lookup, fact.event
        epoch = _epoch(alloc)
        self._at(self.admissions, alloc, epoch).inc()
        self._at(self.queried, alloc, epoch).inc(max(0, lookup.total - lookup.computed))
        self._at(self.local, alloc, epoch).inc(lookup.computed)
        if lookup.matched is not None and fact.is_alone:
            # The last token is computed in any case: there are no logits without it.
            held = min(lookup.matched, lookup.total - 1)
            self._at(self.recomputed, alloc, epoch).inc(max(0, held - lookup.computed - alloc.allocated))

    def _lookup(self, event: Lookup) -> None:
        answer = "later" if event.returned is None else "hit" if event.returned else "miss"
        self._at(self.lookups, event, "error" if event.error else answer).inc()
        self._at(self.lookup_tokens, event).inc(max(0, event.returned or 0))
        self._time(self.lookup_seconds, event, event.end_ns - event.start_ns)
        if event.refused is not None:
            self._at(self.healed, event).inc()

    def _copied(self, event: Load | Store, tokens: Counter, bytes_: Counter, seconds: Histogram) -> None:
        self._at(tokens, event).inc(event.count)
        self._at(bytes_, event).inc(event.bytes or 0)
        if event.end_ns > event.start_ns:  # a log's line has one moment only
            self._time(seconds, event, event.end_ns - event.start_ns)

    def _at(self, metric: Counter | Histogram, event: Event, *labels: str) -> Any:
        return self._series.at(metric, event.engine, self._series.connectors.name(event.connector), *labels)

    def _time(self, metric: Histogram, event: Event, lasted_ns: int) -> None:
        self._at(metric, event).observe(max(0, lasted_ns) / 1e9, exemplar(event.trace_id))


def sources(event: Alloc) -> dict[str, int]:
    """Where the allocated external tokens come from, by the connector's own account, if that adds up."""
    told: dict[str, int] = {}
    for source in event.hit_sources or ():
        name, _, count = source.partition(":")
        if name in SOURCES and count.isdecimal():
            told[name] = told.get(name, 0) + int(count)
    return told if sum(told.values()) == event.allocated else {UNSPECIFIED: event.allocated}


def exemplar(trace_id: str) -> dict[str, str] | None:
    """What leads from a number to a trace; None where no trace is known."""
    return {"trace_id": trace_id} if len(trace_id) == 32 else None


def _epoch(event: Event) -> str:
    return RESUMED if event.epoch else FIRST
