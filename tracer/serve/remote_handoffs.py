"""Pairs in a fleet: the two engines of a hand-off may report to two sidecars. Each sidecar writes the events of its hand-offs
to the fleet's store, and fetches the other sides from there. So it has both sides, and judges its own requests.

A sidecar does not know when another one writes. It asks for a hand-off at once, after one second, two, four and so on,
until no events have arrived for a while; each event of its own side starts this sequence again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.clickhouse.writer import ClickHouseWriter
from kvtrail.tracer.store.handoffs import HandoffRow, heard_of

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Seconds between two queries for one hand-off; the wait doubles up to the longest."""
ASKED_FOR_S = 1200.0
"""Time for which a hand-off is queried after the last event of its own side: twice the longest wait of any connector."""
MAX_ASKED = 50_000
"""Maximum number of hand-offs that are queried; beyond that, the oldest is dropped."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A hand-off that is queried: the start, the time of the next query, and the wait after it; monotonic seconds."""

    since_s: float
    due_s: float
    wait_s: float = FIRST_WAIT_S


class RemoteHandoffs:
    """Fetches the other sides of hand-offs."""

    def __init__(self, pipeline: Pipeline, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline, self._clock = pipeline, clock
        self._asked: BoundedDict[str, _Asked] | None = None
        """The queried hand-offs by name; None before the first query since the start."""

    def want(self, rows: Iterable[HandoffRow]) -> None:
        """Note that these events were written to the store of the fleet."""
        if self._asked is not None:
            self._want(key for row in rows for key in row.keys)

    def ask(self, store: ClickHouseWriter) -> None:
        """Run the queries that are due. Raises StoreError."""
        if self._asked is None:
            if not self._pipeline.ingest_remote(()):
                return  # it still reads back its state
            self._asked = BoundedDict(MAX_ASKED)
            self._want(self._pipeline.own_handoffs())
        now_s = self._clock()
        due = [key for key, asked in self._asked.items() if asked.due_s <= now_s]
        if due and self._pipeline.ingest_remote(heard_of(store.handoffs(due))):
            for key in due:
                asked = self._asked[key]
                if now_s - asked.since_s > ASKED_FOR_S:
                    del self._asked[key]
                else:
                    wait_s = min(2 * asked.wait_s, LONGEST_WAIT_S)
                    self._asked[key] = replace(asked, due_s=now_s + asked.wait_s, wait_s=wait_s)

    def _want(self, keys: Iterable[str]) -> None:
        assert self._asked is not None
        now_s = self._clock()
        for key in keys:
            self._asked[key] = _Asked(now_s, now_s)
            self._asked.move_to_end(key)
