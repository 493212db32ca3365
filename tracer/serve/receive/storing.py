"""The third job of the pipeline: what is written, and when. Spans and findings are stored with their request. The rows of
requests follow a moment later: most requests change with every batch, and a sidecar that is killed makes them again from the
spans.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from msgspec.structs import fields

from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import CLASSES, Event
from kvtrail.tracer.ledger.lanes import lane_of
from kvtrail.tracer.ledger.measures import measures_of
from kvtrail.tracer.liveness import markers
from kvtrail.tracer.liveness.launches import Launches
from kvtrail.tracer.model.findings import Verdict
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.judging import Judge
from kvtrail.tracer.serve.receive.receiving import ReceivedRequest
from kvtrail.tracer.store import ACTIVITY_S, Activity, Amounts, Batch, StoreError
from kvtrail.tracer.store.request_rows import row_of
from kvtrail.tracer.store.sqlite.store import SqliteWriter

MANY_DIRTY = 5_000
"""From this many changed requests on, their rows are written at once: accounts that are not held any more have no row."""
ROWS_AT_ONCE = 500
"""Rows of requests that are written together, so that a batch does not wait for long."""
CATCH_UP_S, MAX_CATCH_UP_S = 0.05, 0.25
"""How often rows are written at most because somebody asks, and how long one who asks waits for them: what then is still to
be written is shown later."""
FOLD_NS = 60 * 10**9
"""How long small chunks stay in the log, where few spans come."""
MAX_MARKED = 10_000
_STRETCH_NS = ACTIVITY_S * 10**9
_SOURCES = {"returned": "returned", "count_tokens": "count", "bytes": "bytes"}
"""Which field of an event each amount sums up."""
_SUMMED = {
    kind: [
        (Amounts._fields.index(amount), source)
        for amount, source in _SOURCES.items()
        if source in {field.name for field in fields(cls)}
    ]
    for kind, cls in CLASSES.items()
}
"""By kind of event: the places of the amounts that it has in `Amounts`, each with its field."""


class Storage:
    """Writes what was received and what was judged.

    Attributes:
        trouble: why nothing could be stored the last time; None while all is well.
        spans: how many were stored since the start.
        last_number: the number of the last span that is stored.
    """

    def __init__(
        self,
        writer: SqliteWriter,
        judge: Judge,
        launches: Launches,
        metrics: Metrics,
        lock: threading.RLock,
        *,
        max_requests: int,
        rows_every_ns: int,
    ) -> None:
        """
        Args:
            lock: of the pipeline.
            rows_every_ns: how long the rows of requests may wait.
        """
        self._writer, self._judge, self._launches, self._lock = writer, judge, launches, lock
        self._metrics, self._errors = metrics, metrics.internal_errors
        self._rows_every_ns, self._most_dirty = rows_every_ns, min(MANY_DIRTY, max_requests // 4)
        self.trouble: str | None = None
        self.spans = 0
        self.due: dict[Key, None] = {}
        """The requests with rows that are being written: the changed ones of a moment ago."""
        self._due_number = self.last_number = writer.last_number()
        """The last span that the due rows know of, and that is stored."""
        self._rows_at = time.monotonic_ns() - rows_every_ns
        self._folded_at = time.monotonic_ns()
        self._marked: BoundedDict[str, None] = BoundedDict(MAX_MARKED)
        """The ids of the latest markers: every heartbeat repeats how many events were dropped."""
        self._catching_up = threading.Lock()

    @property
    def spans_behind(self) -> int:
        """Spans that are stored and not judged: only while a sidecar that has just started reads back what it knew."""
        return self.last_number - self._judge.judged if self._judge.is_behind else 0

    def rows_are_due(self) -> bool:
        """Whether rows have waited for long enough, or there are many."""
        waited_ns = time.monotonic_ns() - self._rows_at
        return waited_ns >= self._rows_every_ns or len(self._judge.dirty) >= self._most_dirty

    def write(self, *, rows: bool) -> None:
        """Write what has changed since the last batch; with `rows`, also some of those of requests.

        Raises:
            StoreError: nothing was stored.
        """
        with self._lock:
            self.commit(rows=rows)

    def write_rows(self) -> None:
        """Write the rows of the requests that have changed until now. Raises StoreError."""
        if self._judge.is_recalling:
            return
        if self.due or self._judge.dirty or self._judge.savings.sums or self.trouble is not None:
            self.write(rows=True)
        while self.due:
            self.write(rows=True)

    def write_changes(self) -> None:
        """Write findings that have changed and events of hand-offs, and try again what could not be stored. Raises
        StoreError."""
        if self._judge.changed or self._judge.handoffs or self.trouble is not None:
            self.write(rows=False)

    def write_launches(self) -> None:
        """Write launches that have changed. Raises StoreError."""
        if self._launches.changed:
            self.write(rows=False)

    def catch_up(self) -> None:
        """Write what rows are missing, for somebody who asks for them: what was acknowledged is seen at once, unless there is
        much of it. All who ask within `CATCH_UP_S` are served together."""
        until_s = time.monotonic() + MAX_CATCH_UP_S
        if not self._catching_up.acquire(timeout=MAX_CATCH_UP_S):
            return
        try:
            is_needed = bool(self._judge.dirty or self.due) and not self._judge.is_recalling
            if is_needed:
                time.sleep(max(0, CATCH_UP_S - (time.monotonic_ns() - self._rows_at) / 1e9))
            while is_needed and self._lock.acquire(timeout=max(0, until_s - time.monotonic())):
                try:
                    self.write(rows=True)
                finally:
                    self._lock.release()
                is_needed = bool(self.due) and time.monotonic() < until_s
        except StoreError:
            pass  # `trouble` has it
        finally:
            self._catching_up.release()

    def commit(
        self, came: ReceivedRequest | None = None, engines: Mapping[str, Mapping[str, str]] | None = None, *, rows: bool
    ) -> None:
        """Write a request of spans with how its `engines` describe themselves, findings and sums, and with `rows` those of
        some requests. What could not be written goes with the next batch. The caller holds the lock.

        Raises:
            StoreError: nothing was stored.
        """
        judge, chunk = self._judge, None if came is None else came.chunk
        number = self.last_number + (0 if chunk is None else chunk.spans)
        known = judge.judged if judge.is_behind else number
        keys, settled = ({}, None) if judge.is_recalling else self._next_rows(known, due=rows)
        judge.read_back({key for key in keys if key[1] and key not in judge.detector.accounts})
        batch = Batch(
            chunk, savings=judge.savings.sums, settled=settled, judged=judge.judged if judge.is_behind else None
        )
        batch.findings, batch.launches = list(judge.changed.values()), list(self._launches.changed.values())
        batch.handoffs, batch.wasted = list(judge.handoffs), list(judge.sums.wasted)
        fresh: Sequence[Event] = ()
        if came is not None:
            fresh = came.fresh
            batch.digest, batch.engines, batch.activity = came.digest, engines or {}, activity_of(fresh)
            batch.markers = [each for each in markers.of_events(fresh) if each.id not in self._marked]
            batch.seen = {recorder: numbers.as_text() for recorder, numbers in came.numbers.items()}
        for key in keys:
            self._add_row(batch, key)
        try:
            left_out = self._writer.write(batch)
        except Exception as refusal:
            self.due = keys | self.due
            if isinstance(refusal, StoreError):
                self._metrics.store_failures.inc()
                self.trouble = str(refusal)
            raise
        self.trouble = None
        for error in left_out:
            self._errors.count(Where.STORE, error, "a row is not stored")
        with self._errors.caught(Where.METRICS):
            for marker in batch.markers:
                self._marked[marker.id] = None
                self._metrics.mark(marker)
            self._metrics.count_batch(fresh, judge.savings.facts, judge.sums.handed_over)
        judge.confirm(number)
        self._launches.changed.clear()
        self.spans += number - self.last_number
        self.last_number = number

    def fold(self) -> None:
        """Do in the store what is cheaper for many spans and requests at a time. To be called every second or so."""
        if self._judge.is_behind:  # the chunks are being read
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
        """Whether the store comes near to its bound, and should be pruned before it is due."""
        with self._lock:
            return self._writer.is_filling()

    def close(self) -> None:
        """Close the store."""
        self._writer.close()

    def _in_steps(self, step: Callable[[], bool]) -> None:
        """Do something that takes long, until a step says that there was nothing left to do."""
        while True:
            began_s = time.monotonic()
            with self._lock:
                if not step():
                    return
            time.sleep(time.monotonic() - began_s)  # as long as it took: ingest has its turn

    def _next_rows(self, number: int, *, due: bool) -> tuple[dict[Key, None], int | None]:
        """The requests with rows that are written next; and the number of the span that all rows know of then, if it changes.
        Where none are due, those with new findings."""
        judge = self._judge
        if not due:
            return dict.fromkeys((finding.engine, finding.request) for finding in judge.changed.values()), None
        if not self.due:
            self.due, self._due_number = judge.take_dirty(), number
            self._rows_at = time.monotonic_ns() if self.due else self._rows_at
        rows = dict.fromkeys(islice(self.due, ROWS_AT_ONCE))
        for key in rows:
            del self.due[key]
        return rows, None if self.due or not judge.may_settle else self._due_number

    def _add_row(self, batch: Batch, key: Key) -> None:
        detector = self._judge.detector
        account = detector.accounts.get(key)
        if account is None:
            return
        findings = len(detector.findings.get(key, ()))
        verdict = detector.verdict(account)
        why = detector.why_unknown(account) if verdict is Verdict.UNKNOWN else None
        unknown = None if why is None else why.name.lower()
        with self._errors.caught(Where.ROWS, f"request {account.request} is not shown as it is"):
            known = {**account.as_dict(), "verdict": verdict, "findings": findings, "unknown": unknown}
            known |= measures_of(account, known["causes"])
            # Without a start, every event of it waits for one that is missing before it.
            lane = lane_of(account, verdict=verdict, findings=findings) if account.started_ns else None
            batch.requests.append(row_of(known, lane))


def activity_of(events: Sequence[Event]) -> dict[Activity, Amounts]:
    """What events add to the sums of recent activity, by stretch of time, engine and kind."""
    sums: dict[tuple[int, str, str], list[int]] = {}
    for event in events:
        where = event.end_ns // _STRETCH_NS, event.engine, event.kind
        amounts = sums.get(where)
        if amounts is None:
            amounts = sums[where] = [0] * len(Amounts._fields)
        amounts[0] += 1
        for place, source in _SUMMED.get(event.kind, ()):
            amounts[place] += getattr(event, source) or 0
    return {
        Activity(stretch * ACTIVITY_S, engine, kind): Amounts(*amounts)
        for (stretch, engine, kind), amounts in sums.items()
    }
