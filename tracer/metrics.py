"""What Prometheus sees. Base units, `_total`, bounded labels: no request ids, no engine ids.

The registry is ours alone: vLLM may set `PROMETHEUS_MULTIPROC_DIR`, whose multiprocess mode this process has no use for.
"""

from __future__ import annotations

import os

os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)  # prometheus_client reads it when it is imported

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from tracer.events import Alloc, Event, Evict, Load, Lookup, Preempt, RequestEnd, Store
from tracer.findings import Finding, Verdict

disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series beside every counter says nothing that Prometheus does not know
SECONDS = (1e-5, 1e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 2.5, 10.0)


class Metrics:
    """The sidecar's metrics; `docs/metrics.md` lists them, and a test holds the two together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        connector = ("connector",)

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"kvtrail_{name}", text, labels, registry=self.registry)

        self.spans_received = counter("spans_received", "Spans received, by transport.", ("transport",))
        self.spans_foreign = counter("spans_foreign", "Spans received that no kvtrail recorder wrote.")
        self.spans_repeated = counter("spans_repeated", "Spans received again, and stored once.")
        self.spans_malformed = counter("spans_malformed", "Spans in kvtrail's scope that lack what their kind needs.")
        self.events_missing = counter("events_missing", "Events that never came, by the gaps in their numbers.")
        self.lookups = counter("lookups", "Lookups, by whether they were answered, and how.", ("connector", "answer"))
        self.lookup_tokens = counter(
            "lookup_tokens_returned", "Tokens that lookups returned to the scheduler.", connector
        )
        self.alloc_tokens = counter("alloc_tokens", "External tokens for which blocks were allocated.", connector)
        self.load_tokens = counter("load_tokens", "Tokens loaded from the connector's store.", connector)
        self.load_bytes = counter("load_bytes", "Bytes loaded from the connector's store.", connector)
        self.store_tokens = counter("store_tokens", "Tokens copied to the connector's store.", connector)
        self.store_bytes = counter("store_bytes", "Bytes copied to the connector's store.", connector)
        self.evicted_chunks = counter("evicted_chunks", "Chunks evicted from the connector's store.", connector)
        self.preemptions = counter("preemptions", "Preemptions of requests.", connector)
        self.requests = counter("requests", "Requests that ended, by outcome.", ("connector", "outcome"))
        self.errors = counter("connector_errors", "Calls of the connector that raised.", ("connector", "call"))
        self.findings = counter(
            "findings", "Contradictions found: one for each rule, request and epoch.", ("rule", "severity", "connector")
        )
        self.checks = counter("checks", "Judgements of the rules.", ("rule", "verdict"))
        self.healed = counter("lookups_healed", "Lookup answers that the guard replaced.", connector)
        self.lookup_seconds = Histogram(
            "kvtrail_lookup_duration_seconds",
            "Time that a lookup took on the scheduler's thread.",
            connector,
            buckets=SECONDS,
            registry=self.registry,
        )
        self.ingest_seconds = Histogram(
            "kvtrail_ingest_duration_seconds",
            "Time from a batch's arrival to its being stored.",
            buckets=SECONDS,
            registry=self.registry,
        )

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read when Prometheus asks."""
        gauge = self._gauges[name] = Gauge(f"kvtrail_{name}", text, registry=self.registry)
        gauge.set_function(read)

    def observe(self, event: Event) -> None:
        """Count one event."""
        connector = event.connector
        if event.error is not None:
            self.errors.labels(connector, event.kind).inc()
        match event:
            case Lookup():
                answer = "later" if event.returned is None else "hit" if event.returned else "miss"
                self.lookups.labels(connector, "error" if event.error else answer).inc()
                self.lookup_tokens.labels(connector).inc(max(0, event.returned or 0))
                self.lookup_seconds.labels(connector).observe(max(0, event.end_ns - event.start_ns) / 1e9)
                if event.refused is not None:
                    self.healed.labels(connector).inc()
            case Alloc():
                self.alloc_tokens.labels(connector).inc(max(0, event.allocated))
            case Load():
                self.load_tokens.labels(connector).inc(event.count)
                self.load_bytes.labels(connector).inc(event.bytes or 0)
            case Store():
                self.store_tokens.labels(connector).inc(event.count)
                self.store_bytes.labels(connector).inc(event.bytes or 0)
            case Evict():
                self.evicted_chunks.labels(connector).inc()
            case Preempt():
                self.preemptions.labels(connector).inc()
            case RequestEnd():
                self.requests.labels(connector, event.outcome or "unknown").inc()

    def found(self, finding: Finding) -> None:
        """Count a new finding."""
        self.findings.labels(finding.rule, finding.severity, finding.connector).inc()

    def judged(self, rule: str, verdict: Verdict, count: int) -> None:
        """Count judgements."""
        self.checks.labels(rule, verdict).inc(count)

    def expose(self, accept: str) -> tuple[bytes, str]:
        """The page for Prometheus, in the format that it accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
