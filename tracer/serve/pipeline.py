"""From a batch of spans to its acknowledgement: decode, account, judge, store.

The order matters. A batch is acknowledged only after it is stored, so a tracer that is killed loses nothing that it has
acknowledged. A batch that is sent again, because its acknowledgement was lost, changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.detector import GRACE_NS, MOST_REQUESTS, Detector
from kvtrail.tracer.detect.lanes import lane_of
from kvtrail.tracer.detect.savings import SavingsCounter
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ingest.trace_file import TraceWriter
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.spans import Span
from kvtrail.tracer.serve.engines import RecorderState, engine_states
from kvtrail.tracer.serve.metrics import Metrics
from kvtrail.tracer.store import Batch, StoreError, Writer

logger = logging.getLogger("kvtrail")

FORGET_FINISHED_NS = 60 * 10**9
"""How long a finished request stays in memory for events that arrive late."""
SHOW_SILENT_NS = 3600 * 10**9
"""How long an engine that has fallen silent stays in the metrics."""


class Pipeline:
    """Processes batches of spans from any thread, one batch at a time."""

    def __init__(
        self,
        writer: Writer,
        metrics: Metrics,
        *,
        trace_file: Path | None = None,
        max_requests: int = MOST_REQUESTS,
    ) -> None:
        """Reads the open requests back from the store, so that a restart does not look like a gap."""
        self.savings = SavingsCounter()
        self.detector = Detector(max_requests=max_requests, listener=self._sum_up)
        self.recorders: dict[str, RecorderState] = {}
        self.started_ns = time.time_ns()
        self.last_received_ns: int | None = None
        self.spans_stored = 0
        self._writer = writer
        self._metrics = metrics
        self._trace_file = None if trace_file is None else TraceWriter(trace_file)
        self._lock = threading.Lock()
        self._decoder = ProtobufDecoder()
        # What the next commit writes: requests whose accounts changed, and findings.
        self._dirty: dict[tuple[str, str], None] = {}
        self._changed: dict[str, Finding] = {}
        self._reported: set[str] = set()
        self._read_back_ids: set[tuple[str, str]] = set()
        self._lost: Counter[str] = Counter()
        self._read_back(writer.open_spans())
        self._recalled = self.detector.verdicts
        metrics.watch_checks(lambda: self.detector.verdicts - self._recalled)
        metrics.watch("requests_open", "Requests that have started and not ended.", self._open_requests)
        metrics.watch(
            "last_received_timestamp_seconds", "Arrival of the last batch.", lambda: (self.last_received_ns or 0) / 1e9
        )

    def ingest(self, payload: bytes, *, transport: str) -> None:
        """Process one batch: an `ExportTraceServiceRequest` in binary form. When this returns, it is stored.

        Raises:
            MalformedOtlp: the bytes are no such request.
            StoreError: nothing was stored, and the sender should try again.
        """
        started_s = time.perf_counter()
        with self._lock:
            spans = self._decoder.spans(payload)
            known = self._writer.known(spans)
            new = [span for span in spans if (span.trace_id, span.span_id) not in known]
            pairs = [(span, self._event(span)) for span in new]
            events = [event for _, event in pairs if event is not None]
            touched = {(event.engine, event.request): None for event in events if event.request is not None}
            self._recall(touched)
            self._dirty.update(touched)
            self._take_findings(self.detector.feed(events, at_ns=time.monotonic_ns()))
            self._commit(pairs)
            self.last_received_ns = time.time_ns()
            self._count(len(spans), pairs, transport, self.last_received_ns)
            if self._trace_file is not None and new:
                try:
                    self._trace_file.write(payload)
                except OSError as error:  # the batch is stored; only its copy is lost
                    logger.error("the trace file misses a batch: %s", error)
        self._metrics.ingest_seconds.observe(time.perf_counter() - started_s)

    def prune(self, *, retain_ns: int) -> None:
        """Drop what is older than `retain_ns` from the store."""
        with self._lock:
            self._writer.prune(before_ns=time.time_ns() - retain_ns)

    def tidy(self) -> None:
        """Stop waiting for events that have been missing for too long, and forget finished requests.

        To be called every second or so.
        """
        now_ns = time.time_ns()
        with self._lock:
            self._take_findings(self.detector.settle(before_ns=time.monotonic_ns() - GRACE_NS))
            if self._dirty or self.savings.cells:
                self._commit([])
            if self.detector.forget_finished(before_ns=now_ns - FORGET_FINISHED_NS):
                self._reported &= {id_ for by_id in self.detector.findings.values() for id_ in by_id}
            self._show_engines(now_ns)

    def close(self) -> None:
        """Close the trace file and the store."""
        with self._lock:
            if self._trace_file is not None:
                self._trace_file.close()
            self._writer.close()

    def _event(self, span: Span) -> Event | None:
        try:
            return decode.from_span(span)
        except decode.MalformedSpan as malformed:
            self._metrics.spans_malformed.inc()
            logger.warning("%s; it is stored, but no rule judges it", malformed)
            return None

    def _recall(self, requests: Iterable[tuple[str, str]]) -> None:
        """Read forgotten requests back, for events that arrive late."""
        for engine, request in requests:
            if (engine, request) not in self.detector.accounts:
                self._read_back(self._writer.spans_of_request(engine, request))

    def _read_back(self, spans: Iterable[Span]) -> None:
        """Feed stored spans to the detector again. Their findings were reported before."""
        for span in spans:
            if (event := self._event(span)) is not None:
                self._read_back_ids.add((span.trace_id, span.span_id))
                self._reported.update(finding.id for finding in self.detector.feed([event]))

    def _sum_up(self, event: Event, account: Account) -> None:
        """Enter an event into phases and savings. If it was read back, its sums are stored already."""
        account.phases.enter(event)
        id_ = (event.trace_id, event.span_id)
        if id_ in self._read_back_ids:
            self._read_back_ids.discard(id_)
            self.savings.recall(event, account)
        else:
            self.savings.enter(event, account)

    def _take_findings(self, findings: Sequence[Finding]) -> None:
        """Count and log new findings, and mark for the next commit what the detector just changed."""
        for finding in findings:
            if finding.id not in self._reported:
                self._reported.add(finding.id)
                self._metrics.count_finding(finding)
                logger.warning("%s: %s", finding.rule, finding.explanation)
            self._changed[finding.id] = finding
        self._dirty.update(dict.fromkeys(self.detector.changed))
        self.detector.changed.clear()

    def _commit(self, pairs: list[tuple[Span, Event | None]]) -> None:
        """Write the spans and all that has changed. What could not be written goes with the next batch."""
        accounts, lanes = [], []
        for key in self._dirty:
            if (account := self.detector.accounts.get(key)) is not None:
                findings = len(self.detector.findings.get(key, ()))
                verdict = self.detector.verdict(account)
                accounts.append({**account.as_dict(), "verdict": verdict, "findings": findings})
                if account.started_ns:  # otherwise every event of it waits for one that is missing before it
                    lanes.append(lane_of(account, verdict=verdict, findings=findings))
        batch = Batch(pairs, accounts, list(self._changed.values()), self.savings.cells, lanes)
        try:
            self._writer.write(batch)
        except StoreError:
            self._metrics.store_failures.inc()
            raise
        self._metrics.count_facts(self.savings.facts)
        self.savings.facts.clear()
        self.savings.cells.clear()
        self.spans_stored += len(pairs)
        self._dirty.clear()
        self._changed.clear()

    def _count(self, received: int, pairs: list[tuple[Span, Event | None]], transport: str, now_ns: int) -> None:
        metrics = self._metrics
        metrics.spans_received.labels(transport).inc(received)
        metrics.spans_repeated.inc(received - len(pairs))
        by_engine: dict[str, tuple[int, int]] = {}
        for span, event in pairs:
            if event is not None:
                count, oldest_ns = by_engine.get(event.engine, (0, event.end_ns))
                by_engine[event.engine] = (count + 1, min(oldest_ns, event.end_ns))
                metrics.count_event(event)
                recorder = self.recorders.get(event.recorder)
                if recorder is None:
                    recorder = self.recorders[event.recorder] = RecorderState.of(event, span.resource)
                if (dropped := recorder.count(event, heard_ns=now_ns)) is not None:
                    metrics.count_lost(event.engine, dropped=dropped)
            elif span.scope != semconv.SCOPE:
                metrics.spans_foreign.inc()
        for engine, (count, oldest_ns) in by_engine.items():
            metrics.count_received(engine, events=count, oldest_ns=oldest_ns, stored_ns=now_ns)

    def _show_engines(self, now_ns: int) -> None:
        for engine, count in (self.detector.lost - self._lost).items():
            self._metrics.count_lost(engine, missing=count)
        self._lost = Counter(self.detector.lost)
        for state in engine_states(self.recorders.values(), self.detector):
            if state.heard_ns < now_ns - SHOW_SILENT_NS:
                self._metrics.retire(state.engine)
            else:
                self._metrics.show(state)

    def _open_requests(self) -> int:
        return len(self.detector.accounts) - len(self.detector.finished)
