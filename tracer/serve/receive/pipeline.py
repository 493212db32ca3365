"""Processes a request of spans: receive, judge, store, acknowledge.

The order matters. A request is acknowledged only after it is stored, so a killed sidecar loses no acknowledged data.
A request that is sent again, because its acknowledgement was lost, changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256

from kvtrail.tracer.detect.detector import GRACE_NS, MAX_REQUESTS
from kvtrail.tracer.detect.pairs import RemoteHandoff
from kvtrail.tracer.detect.retained_blocks import RetainedHandoff
from kvtrail.tracer.ingest.decode import Refused
from kvtrail.tracer.ledger.handoffs import HandOffs
from kvtrail.tracer.liveness.recorders import Contact, RecorderState
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.finding_log import FindingLog
from kvtrail.tracer.serve.known_findings import KnownFindingsFile, KnownHere
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.engines import Engines
from kvtrail.tracer.serve.receive.judging import Judge
from kvtrail.tracer.serve.receive.receiving import Receiver
from kvtrail.tracer.serve.receive.recovery import Recovery
from kvtrail.tracer.serve.receive.storing import Storage
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite.store import SqliteWriter

FORGET_FINISHED_NS = 60 * 10**9
"""Time for which a finished request stays in memory for late events."""

PAUSE_S = 0.005
"""Pause between two slices, long enough for a waiting request to be processed."""


_pause = time.sleep


class Pipeline:
    """Processes requests of spans from any thread, one at a time.

    Attributes:
        detector: the accounts and the findings.
        recorders: recorders that report, or did lately.
        started_ns, last_received_ns: times of its start and of the last request; Unix nanoseconds.
    """

    def __init__(
        self,
        writer: SqliteWriter,
        metrics: Metrics,
        *,
        finding_log: FindingLog | None = None,
        known_findings: KnownFindingsFile | None = None,
        max_requests: int = MAX_REQUESTS,
        grace_ns: int = GRACE_NS,
        rows_every_ns: int = 0,
        resume: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """The rows of requests are written with a batch or in tidying, at intervals of `rows_every_ns`. If `resume` is False,
        the caller must call `recovery.run()`. `clock`, by default the monotonic one, decides when missing events are
        given up and finished requests forgotten."""
        self.metrics, self.errors = metrics, metrics.internal_errors
        self.known_findings = known_findings or KnownFindingsFile()
        self.started_ns = time.time_ns()
        self.last_received_ns: int | None = None
        self._clock = clock or time.monotonic_ns
        self._lock = lock = threading.RLock()
        self._writer = writer
        self._receiver = Receiver(writer.receipts(), writer.seen())
        self.judge = Judge(
            writer,
            metrics,
            lock,
            self._receiver.highest_numbers(),
            max_requests=max_requests,
            grace_ns=grace_ns,
            clock=self._clock,
            known=KnownHere(self.known_findings, writer.descriptions()),
            on_recalled=self._receiver.recall,
            finding_log=finding_log,
        )
        self.detector = self.judge.detector
        self.engines = Engines(writer.launches(), writer.heard(), metrics)
        self.recorders = self.engines.recorders
        self.storage = Storage(
            writer,
            self.judge,
            self.engines.launches,
            metrics,
            lock,
            max_requests=max_requests,
            rows_every_ns=rows_every_ns,
        )
        self.recovery = Recovery(writer, self.judge, self.storage, lock)
        if resume:
            self.recovery.run()
        metrics.watch_checks(self.judge.checks, self.judge.unknown)
        metrics.watch("requests_open", self._open_requests)

    def ingest(self, payload: bytes, *, transport: str) -> Refused | None:
        """Process a request: an `ExportTraceServiceRequest` in binary form. When this returns, it is stored, except for spans
        that could not be read, which are returned.

        Raises:
            MalformedOtlp: the bytes are not such a request, or none of its spans can be read.
            StoreError: nothing was stored, and the sender should try again.
        """
        started_s = time.perf_counter()
        digest = sha256(payload).digest()  # before the lock, so that other threads can continue
        self.recovery.wait()
        with self._lock:
            came = self._receiver.receive(payload, digest)
            self.metrics.spans_received.labels(transport).inc(came.spans)
            if came.is_repeated:
                self.metrics.spans_repeated.inc(came.spans)
                return came.refused
            engines = self.engines.descriptions(came)
            self.judge.known.describe(engines)
            if not self.judge.is_behind:
                self.judge.judge(came.fresh, came.again, came.contested, came.too_far)
            rows = self.storage.rows_are_due()
            self.storage.commit(came, engines, rows=rows)
            self._receiver.confirm(came)
            self.last_received_ns = time.time_ns()
            self.engines.count(came, now_ns=self.last_received_ns)
        self.metrics.ingest_seconds.observe(time.perf_counter() - started_s)
        return came.refused

    def ingest_remote(self, those: Iterable[RemoteHandoff]) -> bool:
        """Judge another sidecar's events of hand-offs that this one has a side of; False while this one still reads back its
        state."""
        with self._lock:
            if self.judge.is_behind or self.judge.is_recalling:
                return False
            self.judge.ingest_remote(those)
            return True

    def tidy(self) -> None:
        """Stop waiting for events that have been missing for too long, write rows that are due, and forget finished requests.

        Call it about every second.
        """
        before_ns = self._clock() - FORGET_FINISHED_NS
        self._settle()
        with self._lock:
            is_last_time = self.judge.ends_before(before_ns)  # a forgotten request has no account to make a row from
        if is_last_time or self.storage.rows_are_due():
            self.storage.write_rows()
        else:
            self.storage.write_changes()
        with self._lock:
            gone: list[RecorderState] = []
            with self.errors.caught(Where.TIDY):
                gone = self.recorders.update(at_ns=time.monotonic_ns())
            self._update_launches()  # before their lost requests are forgotten
            self.judge.forget(
                before_ns=before_ns, unwritten=self.judge.dirty.keys() | self.storage.due.keys(), gone=gone
            )
            with self.errors.caught(Where.TIDY):
                self.engines.show(self.detector, self.judge.known, now_ns=time.time_ns())
        self.storage.write_changes()

    def _settle(self) -> None:
        """Judge events that waited for events which never came, in slices, with requests and rows in between."""
        while True:
            with self._lock:
                is_unsettled = self.judge.settle()
            if not is_unsettled:
                return
            if self.storage.rows_are_due():
                self.storage.write_rows()
            _pause(PAUSE_S)

    def stop_resuming(self) -> None:
        """Stop the recovery, which may run in another thread, soon: the next start continues it."""
        self.judge.is_closing = True

    def close(self) -> None:
        """Write all pending data, and close the store."""
        with suppress(StoreError):
            with self._lock:
                self._update_launches()
            self.storage.write_rows()
            self.storage.write_changes()
        with self._lock:
            self._writer.close()

    def _update_launches(self) -> None:
        if not self.judge.is_behind:  # the loss of an engine is known once its requests are
            self.engines.update_launches(self.detector)

    def _open_requests(self) -> int:
        return len(self.detector.accounts) - len(self.detector.finished)

    # State for the API (`Live`).

    @property
    def trouble(self) -> str | None:
        return self.storage.trouble

    @property
    def spans_stored(self) -> int:
        return self.storage.spans

    @property
    def spans_behind(self) -> int:
        return self.storage.spans_behind

    def own_handoffs(self) -> set[str]:
        """The names of the recent hand-offs of engines that report to this sidecar."""
        return {key for row in self._writer.handoffs() if row.is_own for key in row.keys}

    def handoffs_called(self, keys: Collection[str]) -> HandOffs:
        return self.handoffs

    @property
    def handoffs(self) -> HandOffs:
        return self.detector.handoffs

    @property
    def kept(self) -> Sequence[RetainedHandoff]:
        return self.engines.kept

    @property
    def events_missing(self) -> int:
        """Events that were declared missing: they did not arrive within the grace period."""
        return self.detector.missing

    def running(self) -> set[str]:
        """The engines that report; their open requests continue."""
        return {recorder.engine for recorder in self.recorders.values() if recorder.contact is Contact.RUNNING}
