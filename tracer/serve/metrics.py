"""What Prometheus sees: base units, `_total`, and labels that stay few. There are no request ids among them.

The registry is ours alone: vLLM may set `PROMETHEUS_MULTIPROC_DIR`, whose multiprocess mode this process has no use for.
"""

from __future__ import annotations

import os

os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)  # prometheus_client reads it when it is imported

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from kvtrail import __version__
from kvtrail.tracer.detect.efficiency import Admission, Wait
from kvtrail.tracer.detect.rules import all_rules
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding, Verdict
from kvtrail.tracer.serve.connector_metrics import CALL_SECONDS, Work, exemplar
from kvtrail.tracer.serve.engine_status import INFO, EngineState
from kvtrail.tracer.serve.series import Series

disable_created_metrics()  # a `_created` series beside every counter says nothing that Prometheus does not know
LAG_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)

Checks = Mapping[tuple[str, Verdict], int]
"""How often each rule, by its id, gave each verdict."""


class _ChecksCollector(Collector):
    def __init__(self, read: Callable[[], Checks]) -> None:
        self._read = read

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily("kvtrail_checks", "Judgements of the rules.", labels=("rule", "verdict"))
        for labels, count in self._read().items():
            family.add_metric(labels, count)
        yield family


class Metrics:
    """The sidecar's metrics; `docs/metrics.md` lists them, and a test holds the two together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._series = Series()
        self._work = Work(self.registry, self._series)
        self._watched: dict[str, Gauge] = {}
        self._told: dict[str, tuple[str, ...]] = {}

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"kvtrail_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"kvtrail_{name}", text, ("engine", *labels), registry=self.registry)

        self.spans_received = counter("spans_received", "Spans received, by transport.", ("transport",))
        self.spans_foreign = counter("spans_foreign", "Spans received that no kvtrail recorder wrote.")
        self.spans_repeated = counter("spans_repeated", "Spans received again, and stored once.")
        self.spans_malformed = counter("spans_malformed", "Spans in kvtrail's scope that lack what their kind needs.")
        self.store_failures = counter("store_failures", "Writes that the store refused; the sender tries again.")
        self.findings = counter(
            "findings",
            "Contradictions found: one for each rule, request and epoch.",
            ("engine", "connector", "rule", "severity"),
        )
        self.events_received = counter("events_received", "Events received.", ("engine",))
        self.events_missing = counter(
            "events_missing", "Events that never came, by the gaps in their numbers.", ("engine",)
        )
        self.events_dropped = counter(
            "events_dropped", "Events that the recorders had to drop, as they say.", ("engine",)
        )
        self.lag_seconds = Histogram(
            "kvtrail_event_lag_seconds",
            "Time from the end of an engine's oldest event in a batch to the batch's being stored here.",
            ("engine",),
            buckets=LAG_SECONDS,
            registry=self.registry,
        )
        self.ingest_seconds = Histogram(
            "kvtrail_ingest_duration_seconds",
            "Time from a batch's arrival to its being stored.",
            buckets=CALL_SECONDS,
            registry=self.registry,
        )
        self._info = gauge("engine_info", "What an engine says of itself; always 1.", *INFO)
        self._heard = gauge("engine_last_received_timestamp_seconds", "When an engine's last span came.")
        self._recorders = gauge("engine_recorders", "Recorders of an engine that have not said goodbye.")
        self._outstanding = gauge("events_outstanding", "Events whose number is known and that have not come (yet).")
        self._open_loads = gauge("open_loads", "Asynchronous loads that were not received.")
        self._oldest_load = gauge("open_load_oldest_seconds", "Age of the oldest of them; 0 when there is none.")
        self._kept_requests = gauge("kept_requests", "Requests that have ended and whose blocks are kept.")
        self._kept_blocks = gauge("kept_blocks", "Their KV blocks, where the recorder names them.")
        self._oldest_kept = gauge("kept_oldest_seconds", "Time since the oldest of them ended; 0 when there is none.")
        Gauge("kvtrail_build_info", "The tracer's version; always 1.", ("version",), registry=self.registry).labels(
            __version__
        ).set(1)
        ProcessCollector(registry=self.registry)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read when Prometheus asks."""
        gauge = self._watched[name] = Gauge(f"kvtrail_{name}", text, registry=self.registry)
        gauge.set_function(read)

    def watch_checks(self, read: Callable[[], Checks]) -> None:
        """Add the counter of judgements, which is read when Prometheus asks."""
        self.registry.register(_ChecksCollector(read))

    def received(self, engine: str, *, events: int, oldest_ns: int, stored_ns: int) -> None:
        """Count an engine's events in a batch: the oldest ended then, and the batch was stored at that moment of this
        machine's clock."""
        self._series.at(self.events_received, engine).inc(events)
        self._series.at(self.lag_seconds, engine).observe(max(0, stored_ns - oldest_ns) / 1e9)

    def observe(self, event: Event) -> None:
        """Count what one event says."""
        if self._counts(event):
            self._work.observe(event)

    def tell(self, facts: Iterable[Admission | Wait]) -> None:
        """Count what admissions were worth, and how long requests waited."""
        for fact in facts:
            if self._counts(fact.event):
                self._work.tell(fact)

    def lost(self, engine: str, *, missing: int = 0, dropped: int = 0) -> None:
        """Count events that never came, or that a recorder says it dropped."""
        self._series.at(self.events_missing, engine).inc(missing)
        self._series.at(self.events_dropped, engine).inc(dropped)

    def found(self, finding: Finding) -> None:
        """Count a new finding."""
        connector = self._series.connectors.name(finding.connector)
        series = self._series.at(self.findings, finding.engine, connector, finding.rule, finding.severity)
        series.inc(1, exemplar(finding.trace_id))

    def stand(self, state: EngineState) -> None:
        """Show how an engine stands."""
        engine = state.engine
        if not self._series.place(engine):
            return  # no place left to tell it apart, and `other` is nobody's state
        told = self._told.get(engine)
        if told is not None and told != state.info:
            self._series.drop(self._info, engine, *told)
        self._told[engine] = state.info
        self._series.at(self._info, engine, *state.info).set(1)
        for gauge, value in (
            (self._heard, state.heard_ns / 1e9),
            (self._recorders, state.recorders),
            (self._outstanding, state.outstanding),
            (self._open_loads, state.open_loads),
            (self._oldest_load, state.open_load_oldest_ns / 1e9),
            (self._kept_requests, state.kept_requests),
            (self._kept_blocks, state.kept_blocks),
            (self._oldest_kept, state.kept_oldest_ns / 1e9),
        ):
            self._series.at(gauge, engine).set(value)

    def retire(self, engine: str) -> None:
        """Remove the series of an engine that was not heard of for long."""
        self._told.pop(engine, None)
        self._series.retire(engine)

    def expose(self, accept: str) -> tuple[bytes, str]:
        """The page for Prometheus, in the format that it accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _counts(self, event: Event) -> bool:
        """Whether the event is a connector's, whose series have begun at 0; a recorder's sign of life is none's."""
        if not event.connector:
            return False
        if self._series.begins(event.engine, event.connector):
            self._begin(event.engine, event.connector)
        return True

    def _begin(self, engine: str, connector: str) -> None:
        self._work.begin(engine, connector)
        name = self._series.connectors.name(connector)
        for rule in all_rules():
            self._series.at(self.findings, engine, name, rule.id, rule.severity)
        self.lost(engine)
