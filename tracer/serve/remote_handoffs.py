"""Pairs in a fleet: the two engines of a hand-off may report to two sidecars. Each writes the events of its hand-offs to the
fleet's store, and asks there for the other sides of those that it has one side of. So it has both, and judges its own
requests.

What another sidecar will write, and when, nobody knows. A hand-off is asked for at once, after a second, two, four and so on,
until nothing has come of it for a while; each event of its own side begins that again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvtrail.tracer.detect.pairs import RemoteHandoff
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.store.handoffs import HandoffRow, heard_of

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Between two questions for one hand-off; the wait doubles up to the longest."""
ASKED_FOR_S = 1200.0
"""How long a hand-off is asked for after the last event of its own side: twice what any connector waits for another one."""
MAX_ASKED = 50_000
"""Names of hand-offs that are asked for; beyond that, the oldest is not asked for any more."""


class Judging(Protocol):
    """What judges."""

    def ingest_remote(self, those: Iterable[RemoteHandoff]) -> bool:
        """Judge what another sidecar has; False if that cannot be done yet."""

    def own_handoffs(self) -> Iterable[str]:
        """The names of the recent hand-offs that it has a side of."""


class Shared(Protocol):
    """The store of the fleet."""

    def handoffs(self, keys: Collection[str]) -> Sequence[HandoffRow]:
        """What other sidecars have of the hand-offs that are called so. Raises StoreError."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A name that is asked for: since when, when next, and how long after that; monotonic seconds."""

    since_s: float
    due_s: float
    wait_s: float = FIRST_WAIT_S


class RemoteHandoffs:
    """Asks for the other sides of hand-offs."""

    def __init__(self, judging: Judging, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._judging, self._clock = judging, clock
        self._asked: BoundedDict[str, _Asked] | None = None
        """By what they are called; None before the first question since the start."""

    def want(self, rows: Iterable[HandoffRow]) -> None:
        """These events were written to the store of the fleet."""
        if self._asked is not None:
            self._want(key for row in rows for key in row.keys)

    def ask(self, store: Shared) -> None:
        """Ask for what is due. Raises StoreError."""
        if self._asked is None:
            if not self._judging.ingest_remote(()):
                return  # it reads back what it knew
            self._asked = BoundedDict(MAX_ASKED)
            self._want(self._judging.own_handoffs())
        now_s = self._clock()
        due = [key for key, asked in self._asked.items() if asked.due_s <= now_s]
        if due and self._judging.ingest_remote(heard_of(store.handoffs(due))):
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
