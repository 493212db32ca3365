"""Loads from another engine that fail one after the other, as the engine that decodes records them. Pure and bounded."""

from __future__ import annotations

from typing import NamedTuple

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Alloc, Received

MAX_PEERS = 1_000
"""Engines remembered."""


class FailingLoads(NamedTuple):
    """Loads from one engine that failed in a row: each but the first began after the one before it had failed, and none from
    that engine has gone well since."""

    first: Received
    last: Received
    failures: int


class FailingPeers:
    """By the id of the engine that gives, the loads from it that have failed in a row."""

    def __init__(self) -> None:
        self._rows: BoundedDict[str, FailingLoads] = BoundedDict(MAX_PEERS)

    def after(self, event: Received, alloc: Alloc, peer: str) -> FailingLoads | None:
        """The row once this load has ended, which began with `alloc`; None if there is none."""
        if not (event.failed or event.error is not None):
            return None
        row = self._rows.get(peer)
        if row is None:
            return FailingLoads(event, event, 1)
        if alloc.sequence < row.last.sequence:  # loads that run at the same time fail of the same
            return row
        return FailingLoads(row.first, event, row.failures + 1)

    def enter(self, event: Received, alloc: Alloc, peer: str) -> None:
        """Enter the end of a load."""
        row = self.after(event, alloc, peer)
        if row is None:
            self._rows.pop(peer, None)
        else:
            self._rows[peer] = row

    def clear(self) -> None:
        """Forget all: ends of loads are missing."""
        self._rows.clear()
