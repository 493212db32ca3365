"""The hand-offs for which engines keep blocks now."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.ledger.handoff_sums import NOBODY
from kvtrail.tracer.ledger.handoffs import Pair


class KeptFor(StrEnum):
    """Why the blocks of a hand-off are kept."""

    UNCLAIMED = "unclaimed"
    """No request that takes it is known."""
    WAITING = "waiting"
    """A request is expected to load it."""
    LOADED = "loaded"
    """It is loaded, and the blocks will be freed."""
    ABANDONED = "abandoned"
    """The requests that were to load it have ended, or failed to load it."""


class RetainedHandoff(NamedTuple):
    """A hand-off for which an engine keeps blocks.

    Attributes:
        engine, request: the giving engine and request.
        taker: the taking engine, or `NOBODY`.
        blocks: number of blocks that its recorder names (level `detailed`), or that its tokens fill; 0 if unknown.
        age_ns: time since the request ended, by its engine's own clock, which stops with its events.
    """

    engine: str
    request: str
    taker: str
    state: KeptFor
    blocks: int
    tokens: int
    age_ns: int


def retained_handoffs(detector: Detector) -> Iterator[RetainedHandoff]:
    """All retained hand-offs."""
    for account, now_ns in detector.waiting():
        evidence = account.evidence
        end = evidence.end
        pair = None if end is None else detector.handoffs.given_by(end)
        if end is None or pair is None or pair.given is None or pair.released is not None:
            continue
        waiting = pair.waiting
        takers = waiting or pair.readers
        tokens = pair.given.handoff_tokens or 0
        named = len(end.blocks_ids or ()) or (0 if evidence.blocks is None else evidence.blocks.held)
        yield RetainedHandoff(
            engine=account.engine,
            request=account.request,
            taker=takers[0].engine if takers else NOBODY,
            state=_state(pair),
            blocks=named or (-(-tokens // end.block_size) if end.block_size else 0),
            tokens=tokens,
            age_ns=max(0, now_ns - end.end_ns),
        )


def _state(pair: Pair) -> KeptFor:
    if not pair.readers:
        return KeptFor.UNCLAIMED
    if pair.waiting:
        return KeptFor.WAITING
    return KeptFor.LOADED if pair.loads else KeptFor.ABANDONED
