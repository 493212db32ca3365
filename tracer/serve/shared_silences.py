"""Silences of a fleet: a sidecar and the store of the fleet have the same ones, wherever they are made or ended.

Each has what it was given while the other was away. A silence has an id, and of two records of it the later one counts: so
both exchange what they lack, in any order and as often as they like.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from kvtrail.tracer.model.silences import Silence
from kvtrail.tracer.serve.receive.silenced import newer

EVERY_S = 5.0
"""How often they are exchanged."""


class Silences(Protocol):
    """Who has silences."""

    def put_silences(self, changed: Sequence[Silence]) -> None:
        """Take new and changed ones. Raises StoreError."""


class Sidecar(Silences, Protocol):
    """A sidecar, with those that it knows."""

    @property
    def silences(self) -> Sequence[Silence]: ...


class FleetStore(Silences, Protocol):
    """The store of the fleet."""

    def silences(self) -> Sequence[Silence]:
        """Raises StoreError."""


class SharedSilences:
    """Exchanges the silences of a sidecar with those of its fleet."""

    def __init__(self, sidecar: Sidecar, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sidecar, self._clock = sidecar, clock
        self._due_s = clock()

    def exchange(self, store: FleetStore) -> None:
        """Exchange them, if it is time to. Raises StoreError."""
        if self._clock() < self._due_s:
            return
        own, theirs = self._sidecar.silences, store.silences()
        if lacking := newer(own, than=theirs):
            store.put_silences(lacking)
        if fresh := newer(theirs, than=own):
            self._sidecar.put_silences(fresh)
        self._due_s = self._clock() + EVERY_S
