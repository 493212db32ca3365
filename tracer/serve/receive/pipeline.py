"""From a batch of spans to its acknowledgement: decode, account, judge, store.

The order matters. A batch is acknowledged only after it is stored, so a tracer that is killed loses nothing that it has
acknowledged. A batch that is sent again, because its acknowledgement was lost, changes nothing.

Spans and findings are stored with their batch. The rows of requests follow a moment later: most requests change with every
batch, and a tracer that is killed makes them anew from the spans.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path

from kvtrail.tracer.detect.detector import GRACE_NS, MOST_REQUESTS, Detector
from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event, RequestStart
from kvtrail.tracer.ingest.decode import Refused
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.lanes import lane_of
from kvtrail.tracer.liveness.launches import Launches
from kvtrail.tracer.liveness.recorders import EngineState, Recorders, RecorderState, Status, engine_states
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict
from kvtrail.tracer.model.launches import Launch
from kvtrail.tracer.serve.api.tail import Tail
from kvtrail.tracer.serve.clock import Clock
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.forward.forwarder import Forwarder
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.activity import summed
from kvtrail.tracer.serve.receive.duplicates import Arrivals, Arrived
from kvtrail.tracer.serve.receive.received import received
from kvtrail.tracer.serve.receive.reception import Reception
from kvtrail.tracer.serve.receive.sums import Sums
from kvtrail.tracer.serve.receive.trace_copy import TraceCopy
from kvtrail.tracer.store import Batch, Chunk, StoreError
from kvtrail.tracer.store.sqlite.store import SqliteWriter

logger = logging.getLogger("kvtrail")

FORGET_FINISHED_NS = 60 * 10**9
"""How long a finished request stays in memory for events that arrive late."""
FOLD_NS = 60 * 10**9
"""How long small chunks stay in the log, where few spans come."""
SHOW_SILENT_NS = 3600 * 10**9
"""How long an engine that has fallen silent stays in the metrics."""
AHEAD_NS = 24 * 3600 * 10**9
"""A clock may be wrong by so much; an event from later than this has a time that no clock gave it."""
MANY_UNFINISHED = 1_000
"""So many requests take a while to read back, and the log says so."""
MOST_BEHIND, WAIT_BEHIND_S = 50_000, 5.0
"""Spans that may be stored and not judged; the sender of the next waits, and is to try again after so many seconds."""
RECALLED = 20_000
"""Spans, the latest, that a start reads back as a whole: some seconds of work."""
RESUME_S = 1.0
"""How long it waits where what is stored cannot be read or judged."""
MANY_DIRTY = 5_000
"""So many changed requests are not waited with: accounts that are not held any more have no row."""
CATCH_UP_S, MOST_CATCH_UP_S = 0.05, 0.25
"""How often rows are written at most because somebody asks, and how long one who asks waits for them: what then is still to
be written is shown later."""
ROWS_AT_ONCE = 500
"""Rows of requests that are written together, so that a batch does not wait for long."""


class Pipeline:
    """Processes batches of spans from any thread, one batch at a time."""

    def __init__(
        self,
        writer: SqliteWriter,
        metrics: Metrics,
        *,
        trace_file: Path | None = None,
        forwarder: Forwarder | None = None,
        max_requests: int = MOST_REQUESTS,
        grace_ns: int = GRACE_NS,
        rows_every_ns: int = 0,
        resume: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """The rows of requests are written with a batch, or in tidying, if that was not done for `rows_every_ns`.
        Without `resume`, the caller is to call this method. By the `clock`, what is missing is given up and what has ended
        is forgotten."""
        self._clock: Clock = clock or time
        self._judged = writer.judged()
        """The last span that was judged; all of them were, unless it is behind."""
        self._arrivals = Arrivals(writer.receipts(), writer.seen())
        heard_before = self._arrivals.last() if self._judged else {}
        self._sums = Sums(heard_before, metrics.internal_errors)
        self.savings = self._sums.savings
        self.detector = Detector(
            max_requests=max_requests,
            listener=self._sums.enter,
            on_causes=self._sums.explain,
            on_reset=self._sums.reset,
            on_error=metrics.internal_errors.count,
            came_before=heard_before,
        )
        self.recorders = Recorders()
        self._launches = Launches(
            writer.launches(), writer.heard(), at_ns=time.monotonic_ns(), on_change=self._count_launch
        )
        self.forwarder = forwarder
        self.started_ns = time.time_ns()
        self.last_received_ns: int | None = None
        self.spans_stored = 0
        self.trouble: str | None = None
        """Why nothing could be stored the last time; None while all is well."""
        self._writer = writer
        self._metrics, self.errors = metrics, metrics.internal_errors
        self.tail = Tail(on_skip=metrics.tail_skipped.inc)
        self._grace_ns, self._rows_every_ns = grace_ns, rows_every_ns
        self._most_dirty = min(MANY_DIRTY, max_requests // 4)
        self._trace_file = None if trace_file is None else TraceCopy(trace_file, metrics)
        self._lock, self._catching_up = threading.RLock(), threading.Lock()
        self._decoder = ProtobufDecoder()
        self._reception = Reception(metrics, self.recorders)
        # What the next commit writes: requests whose accounts changed, and findings.
        self._dirty: dict[Key, None] = {}
        self._changed: dict[str, Finding] = {}
        self._due: dict[Key, None] = {}
        """Those whose rows are being written: the changed ones of a moment ago."""
        self._due_number = self._last_number = writer.last_number()
        """The last span that the due rows know of, and that is stored."""
        self._rows_at = time.monotonic_ns() - rows_every_ns
        self._folded_at = time.monotonic_ns()
        self._reported: set[str] = set()
        self._lost: Counter[str] = Counter()
        self._shown: dict[str, EngineState] = {}
        """The engines in the metrics."""
        self._is_behind, self._is_closing = True, False
        self._is_recalling, self._may_settle = writer.last_number() > 0, True
        """While it recalls, accounts are not whole, and no row is written; where it could not, the next start does."""
        self._recalled, self._recalled_unknown = self.detector.verdicts, self.detector.unknown
        if resume:
            self.resume()
        metrics.watch_checks(self.checks, self.unknown)
        metrics.watch("spans_behind", "Spans that are stored and not judged, after a start.", lambda: self.spans_behind)
        metrics.watch("requests_open", "Requests that have started and not ended.", self._open_requests)
        metrics.watch(
            "last_received_timestamp_seconds", "Arrival of the last batch.", lambda: (self.last_received_ns or 0) / 1e9
        )

    @property
    def events_missing(self) -> int:
        """Events that were declared missing: they did not arrive within the grace period."""
        return self.detector.missing

    def running(self) -> set[str]:
        """The engines that are heard, whose open requests go on."""
        return {recorder.engine for recorder in self.recorders.values() if recorder.status is Status.RUNNING}

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
        digest = sha256(payload).digest()
        self._wait_for_judge()
        with self._lock:
            came = received(payload, self._decoder)
            self._metrics.spans_received.labels(transport).inc(came.spans)
            if self._arrivals.has(digest):
                self._metrics.spans_repeated.inc(came.spans)
                return came.refused
            latest_ns = time.time_ns() + AHEAD_NS
            came.refuse_later_than(latest_ns)
            arrived = self._arrivals.compare(came.events)
            if not self._is_behind:
                self._judge(arrived)
            # A recorder that only asks who listens sends no span.
            chunk = came.chunk(latest_ns=latest_ns) if came.spans else None
            engines = self._reception.engines(came)
            found = self._commit(chunk, digest, arrived, engines, rows=self._rows_are_due())
            if self.forwarder is not None:
                with self.errors.caught(Where.FORWARD, "a batch is not forwarded"):
                    self.forwarder.received(came.payload, arrived.fresh, found)
            self.last_received_ns = time.time_ns()
            self._reception.count(came, arrived, now_ns=self.last_received_ns)
            if self._trace_file is not None:
                self._trace_file.write(came.payload)
        self._metrics.ingest_seconds.observe(time.perf_counter() - started_s)
        return came.refused

    def resume(self, on_judged: Callable[[int], None] = lambda number: None) -> None:
        """Read back from the store what a restart must not make unknown: the requests that have not ended, and what the
        latest spans say of the engines and their caches. What comes meanwhile is stored, and judged after it;
        `on_judged` hears up to which span."""
        unsettled: set[Key] = set()
        unfinished: set[Key] = set()
        with self._recalling():
            unsettled = self._writer.unsettled(until=self._judged)
            unfinished = self._writer.open_requests() | unsettled
        with self._lock:
            self._dirty.update(dict.fromkeys(unsettled))
            self._sums.is_recalling = True
        if len(unfinished) > MANY_UNFINISHED:
            logger.info(
                "reading %s unfinished requests back; what comes meanwhile is stored, and judged then", len(unfinished)
            )
        with self._recalling():
            recent = self._writer.beginning(after=self._judged - RECALLED)
            self._read_back(unfinished, until=recent)
            self._recall_all(after=recent)
        with self._lock:
            self._is_recalling, self._sums.is_recalling = self._is_closing, False
            self._recalled, self._recalled_unknown = self.detector.verdicts, self.detector.unknown
        while self._is_behind and not self._is_closing:
            try:
                self._judge_stored()
                on_judged(self._judged)
            except Exception as error:
                self.trouble = f"what was stored is not judged: {error}"
                logger.error("%s; trying again in %s s", self.trouble, RESUME_S)
                time.sleep(RESUME_S)
        if len(unfinished) > MANY_UNFINISHED and not self._is_behind:
            logger.info("they are read back, and all that came is judged")

    @property
    def spans_behind(self) -> int:
        """Spans that are stored and not judged: only while a tracer that has just started reads back what it knew."""
        return self._last_number - self._judged if self._is_behind else 0

    def _wait_for_judge(self) -> None:
        """Raises StoreError if too much waits to be judged, for too long."""
        until_s = time.monotonic() + WAIT_BEHIND_S
        while self.spans_behind >= MOST_BEHIND:
            if time.monotonic() >= until_s:
                raise StoreError("the tracer has just started and reads back what it knew; try again")
            time.sleep(0.05)

    def stop_resuming(self) -> None:
        """End `resume`, which may run in another thread, before long: the next start goes on with it."""
        self._is_closing = True

    def _judge_stored(self) -> None:
        """Judge the next of the spans that are stored and not judged."""
        following = self._writer.following(after=self._judged)
        with self._lock:
            if following is not None:
                number, events = following
                self._sums.come_first(events)
                self._judge(Arrived(_of_this_time(events)))
                self._judged = number
            self._is_behind = self._judged < self._last_number
            are_due = not self._is_behind or self._rows_are_due()
            self._write(rows=are_due)
        while are_due and self._due:
            self._write(rows=True)

    def write_rows(self) -> None:
        """Write the rows of the requests that have changed until now."""
        if self._is_recalling:
            return
        if self._due or self._dirty or self.savings.cells or self.trouble is not None:
            self._write(rows=True)
        while self._due:
            self._write(rows=True)

    def _rows_are_due(self) -> bool:
        return time.monotonic_ns() - self._rows_at >= self._rows_every_ns or len(self._dirty) >= self._most_dirty

    def _write(self, *, rows: bool) -> None:
        """Write what has changed since the last batch; with `rows`, also those of requests."""
        with self._lock:
            found = self._commit(rows=rows)
            if self.forwarder is not None:
                with self.errors.caught(Where.FORWARD, "findings are not forwarded"):
                    self.forwarder.found(found)

    def catch_up(self) -> None:
        """Write what rows are missing, for somebody who asks for them: what was acknowledged is seen at once, unless there is
        much of it. All who ask within `CATCH_UP_S` are served together."""
        until_s = time.monotonic() + MOST_CATCH_UP_S
        if not self._catching_up.acquire(timeout=MOST_CATCH_UP_S):
            return
        try:
            is_needed = bool(self._dirty or self._due) and not self._is_recalling
            if is_needed:
                time.sleep(max(0, CATCH_UP_S - (time.monotonic_ns() - self._rows_at) / 1e9))
            while is_needed and self._lock.acquire(timeout=max(0, until_s - time.monotonic())):
                try:
                    self._write(rows=True)
                finally:
                    self._lock.release()
                is_needed = bool(self._due) and time.monotonic() < until_s
        except StoreError:
            pass  # `trouble` has it
        finally:
            self._catching_up.release()

    def fold(self) -> None:
        """Do in the store what is cheaper for many spans and requests at a time. To be called every second or so."""
        if self._is_behind:  # the chunks are being read
            return
        some = time.monotonic_ns() - self._folded_at > FOLD_NS
        self._in_steps(lambda: self._writer.fold(some=some))
        if some:
            self._folded_at = time.monotonic_ns()

    def prune(self, *, retain_ns: int, most_bytes: int | None = None) -> None:
        """Drop from the store what is older than `retain_ns`, and the oldest where it takes more than `most_bytes`. Batches
        come in between."""
        steps = self._writer.prune(before_ns=time.time_ns() - retain_ns, most_bytes=most_bytes)
        self._in_steps(lambda: next(steps, None) is not None)

    def is_filling(self) -> bool:
        """Whether the store comes near to its bound, and should be pruned before the others' turn."""
        with self._lock:
            return self._writer.is_filling()

    def _in_steps(self, step: Callable[[], bool]) -> None:
        """Do something that takes long, until a step says that there was nothing left to do."""
        while True:
            began_s = time.monotonic()
            with self._lock:
                if not step():
                    return
            time.sleep(time.monotonic() - began_s)  # as long as it took: ingest has its turn

    def tidy(self) -> None:
        """Stop waiting for events that have been missing for too long, write rows that are due, and forget finished requests.

        To be called every second or so.
        """
        now_ns = self._clock.time_ns()
        before_ns = now_ns - FORGET_FINISHED_NS
        with self._lock:
            with self.errors.caught(Where.TIDY):
                self._take_findings(self.detector.settle(before_ns=self._clock.monotonic_ns() - self._grace_ns))
            # What is forgotten below has no account to make a row of.
            is_last_time = not self._dirty.keys().isdisjoint(self.detector.over(before_ns=before_ns))
        if is_last_time or self._rows_are_due():
            self.write_rows()
        elif self._changed or self.trouble is not None:
            self._write(rows=False)
        with self._lock:
            if self.forwarder is not None:
                with self.errors.caught(Where.FORWARD, "what is held for forwarding stays for longer"):
                    self.forwarder.tidy()
            gone: list[RecorderState] = []
            with self.errors.caught(Where.TIDY):
                gone = self.recorders.update(at_ns=time.monotonic_ns())
            self._look_at_launches()  # before what they have lost is forgotten
            with self.errors.caught(Where.TIDY):
                unwritten = self._dirty.keys() | self._due.keys()
                if not self._is_recalling and self.detector.forget_finished(before_ns=before_ns, but=unwritten):
                    self._reported &= {id_ for by_id in self.detector.findings.values() for id_ in by_id}
            with self.errors.caught(Where.TIDY):
                self._forget_recorders(gone)
            with self.errors.caught(Where.TIDY):
                self._show_engines(now_ns)
        if self._launches.changed:
            self._write(rows=False)

    def close(self) -> None:
        """Write what is left, and close the trace file and the store."""
        with suppress(StoreError):
            with self._lock:
                self._look_at_launches()
            self.write_rows()
            if self._launches.changed:
                self._write(rows=False)
        with self._lock:
            if self._trace_file is not None:
                self._trace_file.close()
            self._writer.close()

    def _judge(self, arrived: Arrived) -> None:
        """Enter events. Those that were there before tell nothing new, but of a request that is held: its detector
        decides."""
        accounts = self.detector.accounts
        again = [event for event in arrived.again if (event.engine, event.request) in accounts]
        events = arrived.fresh + again if again else arrived.fresh
        touched = {(event.engine, event.request): None for event in events if event.request is not None}
        if late := [key for key in touched if key not in accounts]:
            begin = {(event.engine, event.request) for event in events if isinstance(event, RequestStart)}
            self._read_back({key for key in late if key not in begin and self._writer.holds(*key)})
        self._dirty.update(touched)
        self._take_findings(self._feed(events))

    def _feed(self, events: Sequence[Event]) -> list[Finding]:
        """Give events to the detector; returns the findings that are new or were seen again. An event that it fails at is
        missing to it, as if it had been lost."""
        try:
            return self.detector.feed(events, at_ns=self._clock.monotonic_ns())
        except Exception as error:
            self.errors.count(Where.DETECTOR, error)
        findings: dict[str, Finding] = {}
        for event in events:  # one by one: those that it entered before are not entered again
            try:
                self.detector.feed([event], at_ns=self._clock.monotonic_ns())
            except Exception as error:
                self.errors.count(Where.DETECTOR, error, f"span {event.span_id} is not judged")
                account = self.detector.accounts.get((event.engine, event.request or ""))
                if account is not None:
                    account.lose(Unknown.RULE)
            findings |= self.detector.findings.get((event.engine, event.request or ""), {})
        return list(findings.values())

    def _recall_all(self, *, after: int) -> None:
        """Feed all stored events after span `after` to the detector again, as far as they were judged."""
        while after < self._judged and not self._is_closing:
            following = self._writer.following(after=after)
            if following is None:
                break
            after, events = following
            self._recall(events)
        with self._lock:
            for key, entries in self._writer.explained(self.detector.accounts).items():
                self.detector.accounts[key].recalled = entries

    def _read_back(self, requests: Collection[Key], *, until: int | None = None) -> None:
        """Feed the stored events of requests to the detector again. Their findings were reported before, and their prompts
        stay explained as they were: what the caches held is not known again."""
        with self._recalling():
            until = self._judged if until is None else until
            for stored in self._writer.events_of(requests, until=until) if requests else ():
                if self._is_closing:
                    return
                self._recall(stored)
            with self._lock:
                for key, entries in self._writer.explained(requests).items() if requests else ():
                    if (account := self.detector.accounts.get(key)) is not None:
                        account.recalled = entries

    def _recall(self, stored: Iterable[Event]) -> None:
        """Feed events whose findings were reported, and whose sums are stored."""
        events = _of_this_time(stored)
        with self._lock:
            self._sums.will_come_again(events)
            self._reported.update(finding.id for finding in self._feed(events))

    @contextmanager
    def _recalling(self) -> Iterator[None]:
        """Count what is raised within. The log stays unsettled from where it was, so that the next start makes the rows."""
        try:
            yield
        except Exception as error:
            self._may_settle = False
            self.errors.count(Where.RECALL, error, "requests that were open are not known again")

    def _take_findings(self, findings: Sequence[Finding]) -> None:
        """Count and log new findings, and mark for the next commit what the detector just changed."""
        for finding in findings:
            if finding.id not in self._reported:
                self._reported.add(finding.id)
                self._metrics.count_finding(finding)
                about = {"rule": finding.rule, "request": finding.request, "engine": finding.engine}
                logger.warning("%s: %s", finding.rule, finding.explanation, extra=about)
            self._changed[finding.id] = finding
            self._dirty[finding.engine, finding.request] = None  # an event of another may have shown it
        forgotten = {(each.engine, each.request) for each in findings} - self.detector.accounts.keys()
        self._read_back({key for key in forgotten if self._writer.holds(*key)})  # so that their rows show it
        self._dirty.update(dict.fromkeys(self.detector.changed))
        self.detector.changed.clear()

    def _commit(
        self,
        chunk: Chunk | None = None,
        digest: bytes = b"",
        arrived: Arrived | None = None,
        engines: Mapping[str, Mapping[str, str]] | None = None,
        *,
        rows: bool,
    ) -> list[Finding]:
        """Write spans, findings and sums, and with `rows` those of some requests; returns these findings. What could not be
        written goes with the next batch."""
        number = self._last_number + (0 if chunk is None else chunk.spans)
        known = self._judged if self._is_behind else number
        keys, settled = ({}, None) if self._is_recalling else self._next_rows(known, due=rows)
        self._read_back({key for key in keys if key[1] and key not in self.detector.accounts})
        judged = self._judged if self._is_behind else None
        batch = Batch(chunk, digest, savings=self.savings.cells, settled=settled, judged=judged)
        batch.findings, batch.launches = list(self._changed.values()), list(self._launches.changed.values())
        if arrived is not None:
            batch.seen, batch.activity, batch.engines = arrived.seen_as_text(), summed(arrived.fresh), engines or {}
        for key in keys:
            self._add_row(batch, key)
        try:
            left_out = self._writer.write(batch)
        except Exception as refusal:
            self._due = keys | self._due
            if isinstance(refusal, StoreError):
                self._metrics.store_failures.inc()
                self.trouble = str(refusal)
            raise
        self.trouble = None
        for error in left_out:
            self.errors.count(Where.STORE, error, "a row is not stored")
        if arrived is not None:
            self._arrivals.confirm(digest, arrived)
        with self.errors.caught(Where.METRICS):
            self._metrics.count_batch(arrived.fresh if arrived is not None else (), self.savings.facts)
        self.savings.facts.clear()
        self.savings.cells.clear()
        self._changed.clear()
        self._launches.changed.clear()
        self.spans_stored += number - self._last_number
        self._last_number = number
        if not self._is_behind:
            self._judged = number
        if chunk is not None:
            self.tail.publish(number, chunk.spans, chunk.payload)
        return batch.findings

    def _next_rows(self, number: int, *, due: bool) -> tuple[dict[Key, None], int | None]:
        """The requests whose rows are written next; and the number of the span that all rows know of then, if it changes.
        Where none are due, those with new findings."""
        if not due:
            return dict.fromkeys((finding.engine, finding.request) for finding in self._changed.values()), None
        if not self._due:
            self._due, self._dirty, self._due_number = self._dirty, {}, number
            self._rows_at = time.monotonic_ns() if self._due else self._rows_at
        rows = dict.fromkeys(islice(self._due, ROWS_AT_ONCE))
        for key in rows:
            del self._due[key]
        return rows, None if self._due or not self._may_settle else self._due_number

    def _add_row(self, batch: Batch, key: Key) -> None:
        account = self.detector.accounts.get(key)
        if account is None:
            return
        findings = len(self.detector.findings.get(key, ()))
        verdict = self.detector.verdict(account)
        why = self.detector.why_unknown(account) if verdict is Verdict.UNKNOWN else None
        unknown = None if why is None else why.name.lower()
        with self.errors.caught(Where.ROWS, f"request {account.request} is not shown as it is"):
            row = {**account.as_dict(), "verdict": verdict, "findings": findings, "unknown": unknown}
            batch.accounts.append(row)
            if account.started_ns:  # otherwise every event of it waits for one that is missing before it
                batch.lanes.append(lane_of(account, verdict=verdict, findings=findings))

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

    def _count_launch(self, before: Launch | None, now: Launch) -> None:
        self._metrics.count_launch(before, now)
        if now.engine not in self._shown and now.ended_ns is not None:  # it went unseen: retired like others
            self._shown[now.engine] = EngineState(engine=now.engine, heard_ns=now.ended_ns)

    def _look_at_launches(self) -> None:
        """Look how the launches of engines are."""
        if not self._is_behind:  # what was lost with an engine is known once its requests are
            with self.errors.caught(Where.TIDY):
                self._launches.update(self.recorders, self.detector, at_ns=time.monotonic_ns())

    def _open_requests(self) -> int:
        return len(self.detector.accounts) - len(self.detector.finished)


def _of_this_time(events: Iterable[Event]) -> list[Event]:
    """The stored events that are judged: those whose time a clock may have given them."""
    latest_ns = time.time_ns() + AHEAD_NS
    return [event for event in events if event.end_ns <= latest_ns]
