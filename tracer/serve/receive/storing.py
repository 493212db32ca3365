"""The third stage of the pipeline: writes to the store. Spans and findings are stored with their OTLP request. The rows of
vLLM requests follow a moment later: most of them change with every batch, and a restarted sidecar makes them again from the
spans.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ledger.lanes import lane_of
from kvtrail.tracer.ledger.measures import measures_of
from kvtrail.tracer.liveness import markers
from kvtrail.tracer.liveness.launches import Launches
from kvtrail.tracer.model.findings import Verdict
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.judging import Judge
from kvtrail.tracer.serve.receive.receiving import ReceivedRequest
from kvtrail.tracer.store import Batch, StoreError
from kvtrail.tracer.store.request_rows import row_of
from kvtrail.tracer.store.sqlite.store import SqliteWriter

MANY_DIRTY = 5_000
"""Number of changed requests from which rows are written at once: an account that is dropped before then gets no row."""
ROWS_AT_ONCE = 500
"""Maximum number of request rows that are written together, so that a batch does not wait long."""
CATCH_UP_S, MAX_CATCH_UP_S = 0.05, 0.25
"""Minimum interval between writes of rows on behalf of readers, and maximum time that a reader waits for them: the remaining
rows are visible later."""
FOLD_NS = 60 * 10**9
"""Time for which small chunks stay in the log if few spans arrive."""
MAX_MARKED = 10_000


class Storage:
    """Writes received and judged data.

    Attributes:
        trouble: why the last write failed; None after a success.
        spans: the number of spans stored since the start.
        last_number: the number of the last stored span.
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
            lock: the lock of the pipeline.
            rows_every_ns: how long the rows of requests may wait.
        """
        self._writer, self._judge, self._launches, self._lock = writer, judge, launches, lock
        self._metrics, self._errors = metrics, metrics.internal_errors
        self._rows_every_ns, self._most_dirty = rows_every_ns, min(MANY_DIRTY, max_requests // 4)
        self.trouble: str | None = None
        self.spans = 0
        self.due: dict[Key, None] = {}
        """The requests with rows that are being written."""
        self._due_number = self.last_number = writer.last_number()
        """The last stored span that the due rows include."""
        self._rows_at = time.monotonic_ns() - rows_every_ns
        self._folded_at = time.monotonic_ns()
        self._marked: BoundedDict[str, None] = BoundedDict(MAX_MARKED)
        """The ids of the latest markers: every heartbeat repeats the number of dropped events."""
        self._catching_up = threading.Lock()

    @property
    def spans_behind(self) -> int:
        """The number of stored spans that are not judged: only while a restarted sidecar reads back its state."""
        return self.last_number - self._judge.judged if self._judge.is_behind else 0

    def rows_are_due(self) -> bool:
        """Whether rows have waited long enough, or there are many."""
        waited_ns = time.monotonic_ns() - self._rows_at
        return waited_ns >= self._rows_every_ns or len(self._judge.dirty) >= self._most_dirty

    def write(self, *, rows: bool) -> None:
        """Write changes since the last batch; with `rows`, also some rows of requests.

        Raises:
            StoreError: nothing was stored.
        """
        with self._lock:
            self.commit(rows=rows)

    def write_rows(self) -> None:
        """Write the rows of the requests that have changed until now. Raises StoreError."""
        if self._judge.is_recalling:
            return
        if self.due or self._judge.dirty or self._judge.sums.savings.sums or self.trouble is not None:
            self.write(rows=True)
        while self.due:
            self.write(rows=True)

    def write_changes(self) -> None:
        """Write changed findings, events of hand-offs and launches, and retry failed writes. Raises StoreError."""
        if self._judge.changed or self._judge.handoffs or self._launches.changed or self.trouble is not None:
            self.write(rows=False)

    def catch_up(self) -> None:
        """Write pending rows for a reader, so that acknowledged data is visible at once, unless there is too much of it.
        Readers within `CATCH_UP_S` are served together."""
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
        """Write a request of spans with the descriptions of its `engines`, findings and sums, and with `rows` also rows of
        some requests. Failed writes are retried with the next batch. The caller holds the lock.

        Raises:
            StoreError: nothing was stored.
        """
        judge, chunk = self._judge, None if came is None else came.chunk
        number = self.last_number + (0 if chunk is None else chunk.spans)
        known = judge.judged if judge.is_behind else number
        keys, settled = ({}, None) if judge.is_recalling else self._next_rows(known, due=rows)
        judge.read_back({key for key in keys if key[1] and key not in judge.detector.accounts})
        batch = Batch(
            chunk,
            savings=judge.sums.savings.sums.by_step(),
            settled=settled,
            judged=judge.judged if judge.is_behind else None,
        )
        batch.findings, batch.launches = list(judge.changed.values()), list(self._launches.changed.values())
        batch.handoffs, batch.wasted = list(judge.handoffs), list(judge.sums.wasted)
        fresh: Sequence[Event] = ()
        if came is not None:
            fresh = came.fresh
            batch.digest, batch.engines = came.digest, engines or {}
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
            self._metrics.count_batch(fresh, judge.sums.savings.facts, judge.sums.handed_over)
        judge.confirm(number)
        self._launches.changed.clear()
        self.spans += number - self.last_number
        self.last_number = number

    def fold(self) -> None:
        """Run maintenance of the store that is cheaper for many spans and requests at once. Call it about every second."""
        if self._judge.is_behind:  # the chunks are being read
            return
        some = time.monotonic_ns() - self._folded_at > FOLD_NS
        self._in_steps(lambda: self._writer.fold(some=some))
        if some:
            self._folded_at = time.monotonic_ns()

    def prune(self, *, retain_ns: int) -> None:
        """Drop data older than `retain_ns` from the store, and the oldest data if it exceeds its quota. Batches are written
        in between."""
        steps = self._writer.prune(before_ns=time.time_ns() - retain_ns)
        self._in_steps(lambda: next(steps, None) is not None)

    def is_filling(self) -> bool:
        """Whether the store is close to its quota, and should be pruned early."""
        with self._lock:
            return self._writer.is_filling()

    def _in_steps(self, step: Callable[[], bool]) -> None:
        """Run a long task in steps, until a step reports that nothing is left to do."""
        while True:
            began_s = time.monotonic()
            with self._lock:
                if not step():
                    return
            time.sleep(time.monotonic() - began_s)  # pause for as long as the step took, so that ingest continues

    def _next_rows(self, number: int, *, due: bool) -> tuple[dict[Key, None], int | None]:
        """The requests with rows that are written next, and the number of the last span that all rows include then, if it
        changes. If none are due, requests with new findings."""
        judge = self._judge
        if not due:
            return dict.fromkeys((finding.engine, finding.request) for finding in judge.changed.values()), None
        if not self.due:
            self.due, self._due_number = judge.dirty, number
            judge.dirty = {}
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
            # Without a start, all its events wait for a missing earlier event.
            lane = lane_of(account, verdict=verdict, findings=findings) if account.started_ns else None
            batch.requests.append(row_of(known, lane))
