"""Recovery after a start: reads back the state that a restart must not lose, and judges stored spans that were not judged
yet. Spans that arrive in the meantime are stored, and judged afterwards."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.serve.receive.judging import Judge
from kvtrail.tracer.serve.receive.receiving import of_this_time
from kvtrail.tracer.serve.receive.storing import Storage
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite.store import SqliteWriter

logger = logging.getLogger("kvtrail")

MANY_UNFINISHED = 1_000
"""Number of requests from which the log reports the recovery, since it takes a while."""
MAX_BEHIND, WAIT_BEHIND_S = 50_000, 5.0
"""Maximum number of stored spans that are not judged; then senders wait, and are asked to retry after `WAIT_BEHIND_S`
seconds."""
RECALLED = 20_000
"""Number of latest spans that a start reads back: some seconds of work."""
RESUME_S = 1.0
"""Pause after stored data could not be read or judged."""


class Recovery:
    """Restores the judge's state from before the restart."""

    def __init__(self, log: SqliteWriter, judge: Judge, storage: Storage, lock: threading.RLock) -> None:
        self._log, self._judge, self._storage, self._lock = log, judge, storage, lock

    def run(self, on_judged: Callable[[int], None] = lambda number: None) -> None:
        """Read back the recent hand-offs, open requests, and the state of engines and caches from the latest spans; then
        judge stored spans that are not judged yet. `on_judged` is called with the number of the last judged span."""
        judge = self._judge
        unsettled: set[Key] = set()
        unfinished: set[Key] = set()
        with judge.recalling():
            judge.recall_handoffs()
        with judge.recalling():
            unsettled = self._log.unsettled(until=judge.judged)
            unfinished = self._log.open_requests() | unsettled
        with self._lock:
            judge.dirty.update(dict.fromkeys(unsettled))
            judge.sums.is_recalling = True
        if len(unfinished) > MANY_UNFINISHED:
            logger.info(
                "restoring %s unfinished requests; spans that arrive in the meantime are stored, and judged later",
                len(unfinished),
            )
        with judge.recalling():
            recent = self._log.beginning(after=judge.judged - RECALLED)
            judge.read_back(unfinished, until=recent)
            judge.recall_all(after=recent)
        with self._lock:
            judge.end_recall()
        while judge.is_behind and not judge.is_closing:
            try:
                self.judge_stored()
                on_judged(judge.judged)
            except Exception as error:
                self._storage.trouble = f"stored spans are not judged: {error}"
                logger.error("%s; trying again in %s s", self._storage.trouble, RESUME_S)
                time.sleep(RESUME_S)
        if len(unfinished) > MANY_UNFINISHED and not judge.is_behind:
            logger.info("all requests are restored, and all stored spans are judged")

    def judge_stored(self) -> None:
        """Judge the next stored spans that are not judged yet. Raises StoreError."""
        judge, storage = self._judge, self._storage
        following = self._log.following(after=judge.judged)
        with self._lock:
            if following is not None:
                number, events = following
                judge.sums.expect_first(events)
                judge.judge(of_this_time(events))
                judge.judged = number
            judge.is_behind = judge.judged < storage.last_number
            are_due = not judge.is_behind or storage.rows_are_due()
            storage.write(rows=are_due)
        while are_due and storage.due:
            storage.write(rows=True)

    def wait(self) -> None:
        """Wait while too many spans are not judged yet. Raises StoreError if that takes too long."""
        until_s = time.monotonic() + WAIT_BEHIND_S
        while self._storage.spans_behind >= MAX_BEHIND:
            if time.monotonic() >= until_s:
                raise StoreError("the tracer has just started and is restoring its state; try again")
            time.sleep(0.05)
