from __future__ import annotations

from typing import NamedTuple

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Alloc, Received
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import PairRule

LEAST = 8
"""Minimum number of consecutive failed loads: if a network loses one in five, eight in a row have a probability of 3e-6."""
MAX_PEERS = 1_000
"""Maximum number of remembered other engines."""


class FailedLoads(NamedTuple):
    """Consecutive failed loads from one engine. Each but the first began after the previous one had failed, and no load from
    that engine has succeeded since."""

    first: Received
    last: Received
    failures: int


class FailingPeers:
    """The consecutive failed loads, by the id of the sending engine."""

    def __init__(self) -> None:
        self._by_peer: BoundedDict[str, FailedLoads] = BoundedDict(MAX_PEERS)

    def after(self, event: Received, alloc: Alloc, peer: str) -> FailedLoads | None:
        """The failed loads after the end of this load, which began with `alloc`; None if it succeeded."""
        if not (event.failed or event.error is not None):
            return None
        row = self._by_peer.get(peer)
        if row is None:
            return FailedLoads(event, event, 1)
        if alloc.sequence < row.last.sequence:  # loads that run at the same time fail of the same
            return row
        return FailedLoads(row.first, event, row.failures + 1)

    def _enter_received(self, event: Received, engine: Engine) -> None:
        if (load := _load_from_peer(event, engine)) is None:
            return
        alloc, peer = load
        if (row := self.after(event, alloc, peer)) is not None:
            self._by_peer[peer] = row
        else:
            self._by_peer.pop(peer, None)


class PeerAlwaysFailing(PairRule[Received]):
    State = FailingPeers

    def judge(self, event: Received, engine: Engine) -> Judgement:
        load = _load_from_peer(event, engine)
        if load is None:
            return None
        alloc, peer = load
        row = engine.states[FailingPeers].after(event, alloc, peer)
        if row is None:
            return OK
        if row.failures != LEAST or row.last is not event:
            return None
        numbers = {"peer": peer, "failed": row.failures, "gone": engine.handoffs.is_gone(event)}
        return Drift(numbers, [row.first, event])


def _load_from_peer(event: Received, engine: Engine) -> tuple[Alloc, str] | None:
    """The load that the event ends, and the sending engine; None unless this engine's name is known."""
    alloc = engine.loads.get(event.request or "")
    pair = engine.handoffs.taken_by(event)
    taken = None if pair is None else pair.takers.get((event.engine, event.request or ""))
    return None if alloc is None or taken is None or taken.handoff_peer is None else (alloc, taken.handoff_peer)
