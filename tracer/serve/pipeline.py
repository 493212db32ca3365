"""From a batch of spans to its acknowledgement: decode, account, judge, store.

The order matters. A batch is acknowledged only after it is stored, so a tracer that is killed loses nothing that it has
acknowledged. A batch that is sent again, because its acknowledgement was lost, changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.detector import GRACE_NS, MOST_REQUESTS, Detector
from kvtrail.tracer.detect.lanes import Lane, lane_of
from kvtrail.tracer.detect.savings import SavingsCounter
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ingest.decode import Refused
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ingest.trace_file import TraceWriter
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import Event, RequestStart
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict
from kvtrail.tracer.model.spans import LATEST_NS, Span
from kvtrail.tracer.serve.engines import EngineState, Recorders, RecorderState, engine_states
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.forward.forwarder import Forwarder
from kvtrail.tracer.serve.metrics import Metrics
from kvtrail.tracer.serve.series import OTHER
from kvtrail.tracer.store import Batch, StoreError, Writer

logger = logging.getLogger("kvtrail")

FORGET_FINISHED_NS = 60 * 10**9
"""How long a finished request stays in memory for events that arrive late."""
SHOW_SILENT_NS = 3600 * 10**9
"""How long an engine that has fallen silent stays in the metrics."""
AHEAD_NS = 24 * 3600 * 10**9
"""A clock may be wrong by so much; an event from later than this has a time that no clock gave it."""
MOST_SHORTENED = 100_000
"""Requests of which only the account is kept, and that are remembered in case something of them comes late."""
LONGEST_UNKNOWN = 100
"""Characters of a name that is not known. Names come from outside, too."""
MOST_TOLD = 1_000
"""Kinds of malformed spans that are remembered; each is told once."""


class Pipeline:
    """Processes batches of spans from any thread, one batch at a time."""

    def __init__(
        self,
        writer: Writer,
        metrics: Metrics,
        *,
        trace_file: Path | None = None,
        forwarder: Forwarder | None = None,
        max_requests: int = MOST_REQUESTS,
        grace_ns: int = GRACE_NS,
    ) -> None:
        """Reads the open requests back from the store, so that a restart does not look like a gap."""
        self.savings = SavingsCounter()
        self.detector = Detector(
            max_requests=max_requests, listener=self._sum_up, on_error=metrics.internal_errors.count
        )
        self.recorders = Recorders()
        self.forwarder = forwarder
        self.started_ns = time.time_ns()
        self.last_received_ns: int | None = None
        self.spans_stored = 0
        self.trouble: str | None = None
        """Why nothing could be stored the last time; None while all is well."""
        self._writer = writer
        self._metrics, self.errors = metrics, metrics.internal_errors
        self._grace_ns = grace_ns
        self._trace_file = None if trace_file is None else TraceWriter(trace_file)
        self._lock = threading.Lock()
        self._decoder = ProtobufDecoder()
        # What the next commit writes: requests whose accounts changed, and findings.
        self._dirty: dict[tuple[str, str], None] = {}
        self._changed: dict[str, Finding] = {}
        self._reported: set[str] = set()
        self._read_back_ids: set[tuple[str, str]] = set()
        self._lost: Counter[str] = Counter()
        self._shown: dict[str, EngineState] = {}
        """The engines in the metrics."""
        self._told: set[tuple[str, str]] = set()
        self._unsampled: set[tuple[str, str]] = set()
        """Requests that the sampler left out."""
        self._shortened: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Requests whose spans were dropped: what comes late of one must not replace its account, which is final."""
        self._read_back(writer.open_spans)
        self._recalled, self._recalled_unknown = self.detector.verdicts, self.detector.unknown
        metrics.watch_checks(self.checks, self.unknown)
        metrics.watch("requests_open", "Requests that have started and not ended.", self._open_requests)
        metrics.watch(
            "last_received_timestamp_seconds", "Arrival of the last batch.", lambda: (self.last_received_ns or 0) / 1e9
        )

    def checks(self) -> Counter[tuple[str, Verdict]]:
        """How often each rule gave each verdict, since this tracer started."""
        return self.detector.verdicts - self._recalled

    def unknown(self) -> Counter[tuple[str, Unknown]]:
        """How often each rule could not decide, by the reason, since this tracer started."""
        return self.detector.unknown - self._recalled_unknown

    def ingest(self, payload: bytes, *, transport: str) -> Refused | None:
        """Process one batch: an `ExportTraceServiceRequest` in binary form. When this returns, it is stored, but for spans
        that could not be read: these are returned.

        Raises:
            MalformedOtlp: the bytes are no such request, or none of its spans can be read.
            StoreError: nothing was stored, and the sender should try again.
        """
        started_s = time.perf_counter()
        with self._lock:
            spans, refused = self._decoder.salvaged(payload)
            known = self._writer.known(spans)
            new: dict[tuple[str, str], Span] = {}
            for span in spans:
                if (id_ := (span.trace_id, span.span_id)) not in known:
                    new.setdefault(id_, span)
            latest_ns = time.time_ns() + AHEAD_NS
            unknown: list[tuple[Span, Sequence[str]]] = []
            pairs = [(span, self._event(span, latest_ns=latest_ns, unknown=unknown)) for span in new.values()]
            events = [event for _, event in pairs if event is not None]
            touched = {(event.engine, event.request): None for event in events if event.request is not None}
            self._recall(touched)
            self._dirty.update(touched)
            self._take_findings(self._feed(events))
            found = self._commit(pairs)
            if self.forwarder is not None:
                with self.errors.caught(Where.FORWARD, "a batch is not forwarded"):
                    self.forwarder.received(payload, events, found)
            self.last_received_ns = time.time_ns()
            self._count(len(spans), pairs, transport, self.last_received_ns)
            for span, names in unknown:
                self._count_unknown(span, names)
            if refused is not None:
                self._metrics.spans_refused.inc(refused.spans)
                logger.warning("%s spans could not be read and were not stored: %s", refused.spans, refused.reason)
            if self._trace_file is not None and new:
                self._copy(self._trace_file, payload, spans if refused is not None else None)
        self._metrics.ingest_seconds.observe(time.perf_counter() - started_s)
        return refused

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
            with self.errors.caught(Where.TIDY):
                self._take_findings(self.detector.settle(before_ns=time.monotonic_ns() - self._grace_ns))
            changed = bool(self._dirty or self.savings.cells or self.trouble is not None)
            found = self._commit([]) if changed else []
            if self.forwarder is not None:
                with self.errors.caught(Where.FORWARD, "findings are not forwarded"):
                    self.forwarder.found(found)
                    self.forwarder.tidy()
            with self.errors.caught(Where.TIDY):
                self._drop_unsampled(before_ns=now_ns - FORGET_FINISHED_NS)
            with self.errors.caught(Where.TIDY):
                if self.detector.forget_finished(before_ns=now_ns - FORGET_FINISHED_NS):
                    self._reported &= {id_ for by_id in self.detector.findings.values() for id_ in by_id}
            with self.errors.caught(Where.TIDY):
                self._forget_recorders(self.recorders.update(at_ns=time.monotonic_ns()))
            with self.errors.caught(Where.TIDY):
                self._show_engines(now_ns)

    def close(self) -> None:
        """Close the trace file and the store."""
        with self._lock:
            if self._trace_file is not None:
                self._trace_file.close()
            self._writer.close()

    def _event(
        self, span: Span, *, latest_ns: int = LATEST_NS, unknown: list[tuple[Span, Sequence[str]]] | None = None
    ) -> Event | None:
        """The span's event, which ended at `latest_ns` or before; None if it has none that can be judged. The span and the
        names in it that only another version of kvtrail knows are added to `unknown`."""
        try:
            event, names = decode.read(span)
            if names and unknown is not None:
                unknown.append((span, names))
            if event is not None and event.end_ns > latest_ns:
                said = f"span {span.span_id} ({span.name}): it ended more than a day after it arrived"
                raise decode.MalformedSpan(said, about=(span.name, "end_ns"))
            return event
        except decode.MalformedSpan as malformed:
            self._metrics.spans_malformed.inc()
            if malformed.about not in self._told and len(self._told) < MOST_TOLD:
                self._told.add(malformed.about)
                logger.warning("%s; it is stored, but no rule judges it. The like of it is only counted.", malformed)
        except Exception as error:
            self.errors.count(Where.DECODE, error, f"span {span.span_id} is stored and not judged")
        return None

    def _feed(self, events: Sequence[Event]) -> list[Finding]:
        """Give events to the detector; returns the findings that are new or were seen again. An event that it fails at is
        missing to it, as if it had been lost."""
        try:
            return self.detector.feed(events, at_ns=time.monotonic_ns())
        except Exception as error:
            self.errors.count(Where.DETECTOR, error)
        findings: dict[str, Finding] = {}
        for event in events:  # one by one: those that it entered before are not entered again
            try:
                self.detector.feed([event], at_ns=time.monotonic_ns())
            except Exception as error:
                self.errors.count(Where.DETECTOR, error, f"span {event.span_id} is not judged")
                account = self.detector.accounts.get((event.engine, event.request or ""))
                if account is not None:
                    account.lose(Unknown.RULE)
            findings |= self.detector.findings.get((event.engine, event.request or ""), {})
        return list(findings.values())

    def _copy(self, file: TraceWriter, payload: bytes, readable: Sequence[Span] | None) -> None:
        """Append a batch to the trace file: as it came, or those of its spans that could be read. It is stored already; only
        its copy may be lost."""
        with self.errors.caught(Where.TRACE_FILE, "the trace file misses a batch"):
            try:
                if readable is None:
                    file.write(payload)
                else:
                    file.write_spans(readable)
            except OSError as error:
                logger.error("the trace file misses a batch: %s", error)

    def _recall(self, requests: Iterable[tuple[str, str]]) -> None:
        """Read forgotten requests back, for events that arrive late."""
        for engine, request in requests:
            if (engine, request) not in self.detector.accounts:
                self._read_back(partial(self._writer.spans_of_request, engine, request))

    def _read_back(self, read: Callable[[], Iterable[Span]]) -> None:
        """Feed stored spans to the detector again. Their findings were reported before."""
        with self.errors.caught(Where.RECALL, "requests that were open are not known again"):
            for span in read():
                if (event := self._event(span)) is not None:
                    self._read_back_ids.add((span.trace_id, span.span_id))
                    self._reported.update(finding.id for finding in self._feed([event]))

    def _sum_up(self, event: Event, account: Account) -> None:
        """Enter an event into phases and savings. If it was read back, its sums are stored already."""
        if event.sampled is False:
            self._unsampled.add((event.engine, account.request))
            if isinstance(event, RequestStart):  # the id is used again
                self._shortened.pop((event.engine, account.request), None)
        try:
            account.phases.enter(event)
        except Exception as error:
            self.errors.count(Where.PHASES, error, f"a phase of {account.request} is not shown")
        id_ = (event.trace_id, event.span_id)
        try:
            if id_ in self._read_back_ids:
                self._read_back_ids.discard(id_)
                self.savings.recall(event, account)
            else:
                self.savings.enter(event, account)
        except Exception as error:
            self.errors.count(Where.SAVINGS, error, f"span {event.span_id} is not summed up")

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

    def _commit(self, pairs: list[tuple[Span, Event | None]]) -> list[Finding]:
        """Write the spans and all that has changed, and return the findings in it. What could not be written goes with the
        next batch."""
        accounts: list[dict[str, Any]] = []
        lanes: list[Lane] = []
        for key in self._dirty:
            if key not in self._shortened and (account := self.detector.accounts.get(key)) is not None:
                findings = len(self.detector.findings.get(key, ()))
                verdict = self.detector.verdict(account)
                why = self.detector.why_unknown(account) if verdict is Verdict.UNKNOWN else None
                unknown = None if why is None else why.name.lower()
                with self.errors.caught(Where.ROWS, f"request {account.request} is not shown as it is"):
                    accounts.append({**account.as_dict(), "verdict": verdict, "findings": findings, "unknown": unknown})
                    if account.started_ns:  # otherwise every event of it waits for one that is missing before it
                        lanes.append(lane_of(account, verdict=verdict, findings=findings))
        batch = Batch(pairs, accounts, list(self._changed.values()), self.savings.cells, lanes)
        try:
            left_out = self._writer.write(batch)
        except StoreError as refusal:
            self._metrics.store_failures.inc()
            self.trouble = str(refusal)
            raise
        self.trouble = None
        for error in left_out:
            self.errors.count(Where.STORE, error, "a row is not stored")
        with self.errors.caught(Where.METRICS):
            self._metrics.count_batch([event for _, event in pairs if event is not None], self.savings.facts)
        self.savings.facts.clear()
        self.savings.cells.clear()
        self.spans_stored += len(pairs)
        self._dirty.clear()
        self._changed.clear()
        return batch.findings

    def _count(self, received: int, pairs: list[tuple[Span, Event | None]], transport: str, now_ns: int) -> None:
        metrics = self._metrics
        metrics.spans_received.labels(transport).inc(received)
        metrics.spans_repeated.inc(received - len(pairs))
        heard: dict[str, tuple[Span, list[Event]]] = {}
        ends_ns: dict[str, list[int]] = {}
        for span, event in pairs:
            if event is not None:
                heard.setdefault(event.recorder, (span, []))[1].append(event)
                ends_ns.setdefault(event.engine, []).append(event.end_ns)
            elif span.scope != semconv.SCOPE:
                metrics.spans_foreign.inc()
        for span, events in heard.values():
            with self.errors.caught(Where.METRICS, f"recorder {events[0].recorder} is not shown as it is"):
                self._count_recorder(events, span, now_ns)
        for engine, ends in ends_ns.items():
            metrics.count_received(engine, events=len(ends), oldest_ns=min(ends), stored_ns=now_ns)

    def _count_recorder(self, events: Sequence[Event], span: Span, now_ns: int) -> None:
        """Count events of one recorder; `span` is one of its spans."""
        recorder = self.recorders.get(events[0].recorder)
        if recorder is None:
            recorder = RecorderState.of(events[0], span.resource, at_ns=time.monotonic_ns())
            self.recorders.add(recorder)
            for misfit in decode.misfits(span.resource):
                logger.warning("recorder %s: %s", recorder.id, misfit)
            self._count_unknown(span, decode.unknown_in_resource(span))
        dropped = recorder.count(events, heard_ns=now_ns, at_ns=time.monotonic_ns())
        if dropped is not None:
            self._metrics.count_lost(recorder.engine, dropped=dropped)

    def _count_unknown(self, span: Span, names: Iterable[str]) -> None:
        """Count names that only another version of kvtrail knows; the log tells each once."""
        recorder = self.recorders.get(str(span.resource.get(semconv.RECORDER_ID.key, "")))
        engine = OTHER if recorder is None else recorder.engine  # only a recorder's engine is ever retired
        version = str(span.resource.get(semconv.VERSION.key, ""))
        for name in names:
            short = name[:LONGEST_UNKNOWN]
            self._metrics.count_unknown(engine, what="span" if name == span.name else "attribute")
            if recorder is not None:
                recorder.count_unknown(short)
            if ("", short) not in self._told and len(self._told) < MOST_TOLD:
                self._told.add(("", short))
                said = "%r, which kvtrail %r has recorded, is not known to this one: it is stored and counted, and not judged"
                logger.warning(said, short, version[:LONGEST_UNKNOWN] or "of another version")

    def _drop_unsampled(self, *, before_ns: int) -> None:
        """Of requests that the sampler left out, and that are well, keep the account and not every span. Called when the
        detector is about to forget them."""
        if not self._unsampled:
            return
        leaving = self._unsampled.intersection(self.detector.over(before_ns=before_ns))
        accounts = self.detector.accounts
        well = [key for key in leaving if self.detector.verdict(accounts[key]) is Verdict.OK]
        if well:
            self._writer.drop_spans(well)
            self._shortened.update(dict.fromkeys(well))
            while len(self._shortened) > MOST_SHORTENED:
                self._shortened.popitem(last=False)
        self._unsampled -= leaving
        self._unsampled &= accounts.keys()

    def _forget_recorders(self, gone: Iterable[RecorderState]) -> None:
        """Drop all that is held of recorders that have ended; what requests they left open is abandoned."""
        last_ns = {recorder.id: recorder.last_ns for recorder in gone}
        if last_ns:
            self.detector.abandon(last_ns, semconv.UNHEARD)
            self.detector.forget_recorders(last_ns)
            self.savings.forget(last_ns)
            self._dirty.update(dict.fromkeys(self.detector.changed))
            self.detector.changed.clear()

    def _show_engines(self, now_ns: int) -> None:
        for engine, count in (self.detector.lost - self._lost).items():
            self._metrics.count_lost(engine, missing=count)
        self._lost = Counter(self.detector.lost)
        gone = {
            name: EngineState(engine=name, info=last.info, heard_ns=last.heard_ns) for name, last in self._shown.items()
        }
        known = {state.engine: state for state in engine_states(self.recorders.values(), self.detector)}
        for engine, state in (gone | known).items():
            if state.heard_ns < now_ns - SHOW_SILENT_NS:
                self._metrics.retire(engine)
                self._shown.pop(engine, None)
            else:  # also of an engine that has ended: what it counted last is still to be read
                self._metrics.show(state)
                self._shown[engine] = state

    def _open_requests(self) -> int:
        return len(self.detector.accounts) - len(self.detector.finished)
