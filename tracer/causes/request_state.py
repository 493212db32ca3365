"""The state of tracked requests: an admission with the parts of its prompt, and its pending load. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from kvtrail.tracer.causes.cache_model import BlockChange
from kvtrail.tracer.events.hash_chains import Chain
from kvtrail.tracer.ledger.facts import Breakdown, Offers
from kvtrail.tracer.model.causes import PEER, Cause, Detail, NotRecorded, Part


class HandedOver(Struct, frozen=True, gc=False):
    """A hand-off from the taking request's parameters: reports of the giving engine may arrive later, or never, and no cause
    depends on them.

    Attributes:
        fact: the event that shows it.
        epoch: the request's epoch then: a hand-off is read once.
        tokens: number of the prompt's tokens that are handed over; None if not stated.
        engine: the giving engine; empty if it is not named.
    """

    fact: BlockChange
    epoch: int
    tokens: int | None
    engine: str


class RequestState(Struct, eq=False):
    """A request that has not ended.

    Attributes:
        chain: the hashes of its blocks.
        not_recorded: why the hashes are unknown, if they are.
        block_size: number of tokens in each block; 0 if unknown.
        identity: its cache salt and adapter, if it has any.
        deferred: the connectors that have answered 'ask me later' since the last admission.
        offers: the connectors' offers for the next admission.
        open: its latest admission, while its promised tokens are still to come.
        promised: the tokens of this load.
        is_loading: whether its load is asynchronous, and has not ended.
        has_ended: whether the request has ended, and only the end of its load is still to come.
        steps: number of steps since then.
        reached: number of tokens that its reported steps have computed.
        failed: the event that reported a failed load of the epoch.
        failed_from: where that load failed, as long as the request has not run since.
        doubt: why it is unknown whether that load failed: the event that would show it may be missing.
        lost: the tokens of such a load that did not arrive, after another lookup in the same epoch.
        lost_tier: the tier that they should have been loaded from.
        handed: its hand-off from another engine; None if it arrived without such parameters.
        computing: number of blocks up to which it is to compute its prompt.
    """

    chain: Chain = field(default_factory=Chain)
    not_recorded: NotRecorded = NotRecorded.LOST
    block_size: int = 0
    identity: str | None = None
    epoch: int = 0
    deferred: set[str] = field(default_factory=set)
    offers: Offers = field(default_factory=Offers)
    open: Breakdown | None = None
    promised: tuple[int, int] = (0, 0)
    is_loading: bool = False
    has_ended: bool = False
    steps: int = 0
    reached: int = 0
    failed: BlockChange | None = None
    failed_from: int | None = None
    doubt: NotRecorded | None = None
    lost: tuple[int, int] = (0, 0)
    lost_tier: str = ""
    handed: HandedOver | None = None
    computing: int = 0


def shortened(parts: Iterable[Part], computed: int, explains: BlockChange | None) -> list[Part]:
    """The parts of a prompt after a load that copied only the tokens before `computed`."""
    made: list[Part] = []
    for part in parts:
        if part.cause is not Cause.LOADED or part.end <= computed:
            made.append(part)
            continue
        if part.start < computed:
            made.append(replace(part, tokens=computed - part.start))
        begin = max(part.start, computed)
        detail = part.detail
        if explains is not None:
            detail = replace(detail, at_ns=explains.at_ns, span_id=explains.span_id)
        made.append(Part(Cause.FAILED_LOAD, part.tier, begin, part.end - begin, detail))
    return made


def doubted(parts: Iterable[Part], why: NotRecorded) -> list[Part]:
    """The parts of a prompt with a load that may have failed."""
    return [
        Part(Cause.UNKNOWN, "", part.start, part.tokens, Detail(why=why)) if part.cause is Cause.LOADED else part
        for part in parts
    ]


def in_common(one: Sequence[bytes], other: Sequence[bytes], most: int) -> int:
    """The number of common blocks of two prompts: equal hashes mean equal beginnings."""
    high = min(most, len(one), len(other))
    if high == 0 or one[0] != other[0]:
        return 0
    return bisect_left(range(high), True, key=lambda n: one[n] != other[n])


def named(parts: Iterable[Part], handed: HandedOver) -> list[Part]:
    """The parts; those of the hand-off also name the giving engine."""
    return [
        replace(part, detail=replace(part.detail, engine=handed.engine))
        if part.tier == PEER and handed.engine
        else part
        for part in parts
    ]
