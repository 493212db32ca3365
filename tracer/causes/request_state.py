"""Requests as they are followed: an admission with the parts of its prompt, and what is still to come of it. Pure."""

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
    """A hand-off, as the request that takes it received it: what the engine that gives says itself may be heard later, or
    never, and no cause depends on it.

    Attributes:
        fact: the event that shows it.
        epoch: the request's epoch then: what was handed over is read once.
        tokens: of the prompt, those with KV that is handed over; None where that is not said.
        engine: the engine that gives; empty where it is not named.
    """

    fact: BlockChange
    epoch: int
    tokens: int | None
    engine: str


class RequestState(Struct, eq=False):
    """A request that has not ended.

    Attributes:
        chain: the hashes of its blocks.
        not_recorded: why they are not known, if they are not.
        block_size: tokens of each; 0 where they are not known.
        identity: its cache salt and adapter, if it has any.
        deferred: the connectors that have answered 'ask me later' since the last admission.
        offers: of the connectors, for the admission that is coming.
        open: its latest admission, while what it was promised is still to come.
        promised: the tokens that this load brings.
        is_loading: whether its load is asynchronous, and has not ended.
        has_ended: whether the request has ended, and only the end of its load is still to be heard.
        steps: how often it ran since then.
        reached: up to where its steps have computed it, as far as they were reported.
        failed: what said that a load of the epoch had failed.
        failed_from: where that load failed, while the request has not run since.
        doubt: why it is not known whether that load failed: what would have shown it may be missing.
        lost: the tokens of such a load that were not brought, after another lookup in the same epoch.
        lost_tier: where they were to be loaded from.
        handed: what another engine has handed over to it; None where it came without such parameters.
        computing: up to where, in blocks, it is to compute its prompt.
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
    """The parts of a prompt after a load that brought only what lies before `computed`."""
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
    """How many blocks two prompts have in common: hashes that are equal stand for equal beginnings."""
    high = min(most, len(one), len(other))
    if high == 0 or one[0] != other[0]:
        return 0
    return bisect_left(range(high), True, key=lambda n: one[n] != other[n])


def named(parts: Iterable[Part], handed: HandedOver) -> list[Part]:
    """The parts, those of the hand-off with the engine that gives."""
    return [
        replace(part, detail=replace(part.detail, engine=handed.engine))
        if part.tier == PEER and handed.engine
        else part
        for part in parts
    ]
