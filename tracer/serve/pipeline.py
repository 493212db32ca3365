"""The sidecar's way of the data: spans in -> events -> ledger and rules -> store, then the acknowledgement.

Order matters: a batch is acknowledged only when it is stored, so a tracer that is killed loses nothing that it has said it
has. A batch that is sent again (its acknowledgement was lost) changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.detector import GRACE_NS, Detector
from kvtrail.tracer.detect.efficiency import Efficiency
from kvtrail.tracer.detect.gaps import Gaps
from kvtrail.tracer.detect.lanes import lane_of
from kvtrail.tracer.detect.ledger import MOST_REQUESTS, Ledger
from kvtrail.tracer.ingest import decode, otlp
from kvtrail.tracer.ingest.trace_file import TraceWriter
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import Event, Heartbeat
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.spans import Span
from kvtrail.tracer.serve.engine_status import Sender, standings
from kvtrail.tracer.serve.metrics import Checks, Metrics
from kvtrail.tracer.store import Batch, StoreError, Writer

logger = logging.getLogger("kvtrail")

KEEP_FINISHED_NS = 60 * 10**9
"""How long a finished request stays in memory for events that come late."""
SHOW_SILENT_NS = 3600 * 10**9
"""How long an engine that has fallen silent stays in the metrics."""


@dataclass(slots=True)
class RecorderState:
    """What is known of one recorder: a process of an engine. Counts are events."""

    id: str
    engine: str
    service: str
    model: str
    version: str
    """Of vLLM."""
    host: str
    first: int
    """Lowest sequence number seen."""
    highest: int
    received: int = 0
    dropped: int = 0
    """As the recorder itself says."""
    closed: bool = False
    last_ns: int = 0
    gaps: Gaps = field(default_factory=Gaps)
    lag_ns: int = 0
    """From the latest event's end, by the recorder's clock, to its arrival, by ours."""
    connectors: set[str] = field(default_factory=set)
    heard_ns: int = 0
    """When its last span came, by this machine's clock."""
    served: str = ""
    """The name under which vLLM serves the model: the label `model_name` of its metrics."""

    def sender(self) -> Sender:
        """What its engine's state is made of."""
        return Sender(
            engine=self.engine,
            info=(self.served or self.model, self.service, self.version),
            heard_ns=self.heard_ns,
            closed=self.closed,
            outstanding=self.missing,
        )

    @property
    def missing(self) -> int:
        """Events between the first and the highest number that have not come (yet)."""
        return self.highest - self.first + 1 - self.received

    def as_dict(self) -> dict[str, Any]:
        names = (
            "id", "engine", "service", "model", "version", "host", "received", "dropped", "missing", "closed", "last_ns",
            "lag_ns",
        )  # fmt: skip
        return {**{name: getattr(self, name) for name in names}, "connectors": sorted(self.connectors)}


class Pipeline:
    """Takes batches of spans from any thread, one at a time."""

    def __init__(
        self,
        writer: Writer,
        metrics: Metrics,
        *,
        trace_file: Path | None = None,
        max_requests: int = MOST_REQUESTS,
    ) -> None:
        """Reads the open requests of the store back, so that a restart does not look like a gap."""
        self.efficiency = Efficiency()
        self.detector = Detector(ledger=Ledger(limit=max_requests), listener=self._sum_up)
        self.recorders: dict[str, RecorderState] = {}
        self.started_ns = time.time_ns()
        self.last_received_ns: int | None = None
        self.spans_stored = 0
        self._writer = writer
        self._metrics = metrics
        self._trace_file = None if trace_file is None else TraceWriter(trace_file)
        self._lock = threading.Lock()
        self._dirty: dict[tuple[str, str], None] = {}
        self._changed: dict[str, Finding] = {}
        self._reported: set[str] = set()
        self._summed: set[tuple[str, str]] = set()
        self._lost: Counter[str] = Counter()
        self._read_back(writer.open_spans())
        self._recalled = self.detector.verdicts
        metrics.watch_checks(self._checks)
        metrics.watch("requests_open", "Requests that have begun and not ended.", self._open_requests)
        metrics.watch("last_received_timestamp_seconds", "When the last batch came.", self._last_received_s)

    def ingest(self, request: ExportTraceServiceRequest, *, transport: str) -> None:
        """Take one batch. When this returns, it is stored.

        Raises:
            StoreError: nothing was stored, and the sender should try again.
        """
        started_s = time.perf_counter()
        with self._lock:
            spans = list(otlp.spans(request))
            known = self._writer.known(spans)
            new = [span for span in spans if (span.trace_id, span.span_id) not in known]
            pairs = [(span, self._event(span)) for span in new]
            fresh = [event for _, event in pairs if event is not None]
            self._recall(fresh)
            self._take_findings(self.detector.feed(fresh))
            self._dirty.update({(e.engine, e.request): None for e in fresh if e.request is not None})
            self._take_changed()
            self._commit(pairs)
            self.last_received_ns = time.time_ns()
            self._count(len(spans), pairs, transport)
            if self._trace_file is not None and new:
                self._append(self._trace_file, request)
        self._metrics.ingest_seconds.observe(time.perf_counter() - started_s)

    def prune(self, *, retain_ns: int) -> None:
        """Drop from the store what is older than `retain_ns`."""
        with self._lock:
            self._writer.prune(before_ns=time.time_ns() - retain_ns)

    def tidy(self) -> None:
        """Called every second or so: give up on what has been missing for too long, and let finished requests go."""
        now_ns = time.time_ns()
        with self._lock:
            self._take_findings(self.detector.settle(before_ns=now_ns - GRACE_NS))
            self._take_findings(self.detector.tick())
            self._take_changed()
            if self._dirty or self.efficiency.cells:
                self._commit([])
            if self.detector.forget_finished(before_ns=now_ns - KEEP_FINISHED_NS):
                self._reported &= {id_ for held in self.detector.findings.values() for id_ in held}
            self._show_engines(now_ns)

    def close(self) -> None:
        with self._lock:
            if self._trace_file is not None:
                self._trace_file.close()
            self._writer.close()

    def _append(self, trace_file: TraceWriter, request: ExportTraceServiceRequest) -> None:
        try:
            trace_file.write(request)
        except OSError as error:  # the batch is stored; only its copy is lost
            logger.error("the trace file misses a batch: %s", error)

    def _event(self, span: Span) -> Event | None:
        try:
            return decode.from_span(span)
        except decode.MalformedSpan as malformed:
            self._metrics.spans_malformed.inc()
            logger.warning("%s; it is stored, but judged by no rule", malformed)
            return None

    def _recall(self, events: Sequence[Event]) -> None:
        """Read requests back that were let go, and of which something comes late."""
        held = self.detector.ledger.accounts
        for key in {(e.engine, e.request): None for e in events if e.request is not None}:
            if key not in held:
                self._read_back(self._writer.spans_of_request(*key))

    def _read_back(self, spans: Iterable[Span]) -> None:
        """Enter stored spans once more; what they show has been reported."""
        for span in spans:
            if (event := self._event(span)) is not None:
                self._summed.add((span.trace_id, span.span_id))
                self._reported.update(finding.id for finding in self.detector.feed([event]))

    def _sum_up(self, event: Event, account: Account) -> None:
        """Sum up an event; of one that was read back the sums are stored already, and only what follows needs it."""
        account.phases.enter(event)
        id_ = (event.trace_id, event.span_id)
        if id_ in self._summed:
            self._summed.discard(id_)
            self.efficiency.recall(event, account)
        else:
            self.efficiency.hear(event, account)

    def _take_changed(self) -> None:
        self._dirty.update(dict.fromkeys(self.detector.changed))
        self.detector.changed.clear()

    def _take_findings(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            if finding.id not in self._reported:
                self._reported.add(finding.id)
                self._metrics.found(finding)
                logger.warning("%s: %s", finding.rule, finding.explanation)
            self._changed[finding.id] = finding

    def _commit(self, pairs: list[tuple[Span, Event | None]]) -> None:
        """Write; what could not be written stays marked and goes with the next batch."""
        accounts, lanes = [], []
        for key in self._dirty:
            if (account := self.detector.ledger.accounts.get(key)) is not None:
                found = len(self.detector.findings.get(key, ()))
                verdict = self.detector.verdict(account)
                accounts.append({**account.as_dict(), "verdict": verdict, "findings": found})
                if account.started_ns:  # otherwise all that came of it waits for what is missing before it
                    lanes.append(lane_of(account, verdict=verdict, findings=found))
        batch = Batch(pairs, accounts, list(self._changed.values()), self.efficiency.cells, lanes)
        try:
            self._writer.write(batch)
        except StoreError:
            self._metrics.store_failures.inc()
            raise
        self._metrics.tell(self.efficiency.facts)
        self.efficiency.facts.clear()
        self.efficiency.cells.clear()
        self.spans_stored += len(pairs)
        self._dirty.clear()
        self._changed.clear()

    def _count(self, received: int, pairs: list[tuple[Span, Event | None]], transport: str) -> None:
        metrics = self._metrics
        metrics.spans_received.labels(transport).inc(received)
        metrics.spans_repeated.inc(received - len(pairs))
        oldest: dict[str, tuple[int, int]] = {}
        for span, event in pairs:
            if event is not None:
                count, oldest_ns = oldest.get(event.engine, (0, event.end_ns))
                oldest[event.engine] = (count + 1, min(oldest_ns, event.end_ns))
                metrics.observe(event)
                self._hear(event, span.resource)
            elif span.scope != semconv.SCOPE:
                metrics.spans_foreign.inc()
        for engine, (count, oldest_ns) in oldest.items():
            metrics.received(engine, events=count, oldest_ns=oldest_ns, stored_ns=self.last_received_ns or 0)

    def _hear(self, event: Event, resource: Mapping[str, Any]) -> None:
        state = self.recorders.get(event.recorder)
        if state is None:
            state = self.recorders[event.recorder] = RecorderState(
                id=event.recorder,
                engine=event.engine,
                service=str(resource.get("service.name", "")),
                model=str(resource.get(semconv.MODEL.key, "")),
                version=str(resource.get(semconv.ENGINE_VERSION.key, "")),
                host=str(resource.get("host.name", "")),
                first=event.sequence,
                highest=event.sequence,
                served=str(resource.get(semconv.SERVED_MODEL.key, "")),
            )
        state.received += 1
        state.gaps.hear(event.sequence, event.end_ns)
        state.first = min(state.first, event.sequence)
        state.highest = max(state.highest, event.sequence)
        state.heard_ns = self.last_received_ns or 0
        if event.end_ns >= state.last_ns:
            state.last_ns, state.lag_ns = event.end_ns, max(0, state.heard_ns - event.end_ns)
        if event.connector:
            state.connectors.add(event.connector)
        if isinstance(event, Heartbeat):
            self._metrics.lost(event.engine, dropped=max(0, event.recorder_dropped - state.dropped))
            state.dropped = max(state.dropped, event.recorder_dropped)
            state.closed = event.recorder_closed

    def _show_engines(self, now_ns: int) -> None:
        for engine, count in (self.detector.lost - self._lost).items():
            self._metrics.lost(engine, missing=count)
        self._lost = Counter(self.detector.lost)
        for state in standings((recorder.sender() for recorder in self.recorders.values()), self.detector).values():
            if state.heard_ns < now_ns - SHOW_SILENT_NS:
                self._metrics.retire(state.engine)
            else:
                self._metrics.stand(state)

    def _checks(self) -> Checks:
        return self.detector.verdicts - self._recalled

    def _open_requests(self) -> int:
        return len(self.detector.ledger.accounts) - len(self.detector.ledger.finished)

    def _last_received_s(self) -> float:
        return (self.last_received_ns or 0) / 1e9
