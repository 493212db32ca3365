"""Requests as they are followed: an admission with the parts of its prompt, and what is still to come of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvtrail.tracer.causes.memory import Fact
from kvtrail.tracer.events.events import Alloc, Lookup
from kvtrail.tracer.events.hash_chains import Chain
from kvtrail.tracer.model.causes import Cause, Detail, Part, Untold


class Breakdown(Struct, eq=False):
    """An admission of a request, and the parts of its prompt.

    Attributes:
        event: the allocation.
        lookup: the lookup that it answers; of a MultiConnector's children, that of the last one.
        parts: in order; they make up the request's tokens at the lookup.
        chain: the hashes of its full blocks; None where they are not known.
        is_final: whether nothing changes any more: before that, what was promised may not be loaded.
    """

    event: Alloc
    lookup: Lookup
    parts: list[Part]
    chain: Sequence[bytes] | None
    is_final: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the parts make up the prompt, one after the other."""
        ends = [0, *(part.end for part in self.parts)]
        return ends[-1] == self.lookup.total and [part.start for part in self.parts] == ends[:-1]

    def as_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        event = self.event
        return {
            "epoch": event.epoch,
            "total": self.lookup.total,
            "at_ns": event.end_ns,
            "span_id": event.span_id,
            "connector": event.connector,
            "final": self.is_final,
            "parts": [part.as_dict() for part in self.parts],
        }


class Followed(Struct, eq=False):
    """A request that has not ended.

    Attributes:
        chain: the hashes of its blocks.
        untold: why they are not known, if they are not.
        block_size: tokens of each; 0 where they are not known.
        prompt: its tokens when it began; 0 where that was not told.
        deferred: the connectors that have answered 'ask me later' since the last admission.
        lookups, allocs: of the admission that is coming, by connector.
        open: its latest admission, while what it was promised is still to come.
        promised: the tokens that this load brings.
        steps: how often it ran since then.
        reached: up to where its steps have computed it, as far as they were told.
        failed: what said that a load of the epoch had failed.
        failed_from: where that load failed, while the request has not run since.
        doubt: why it is not known whether that load failed: what would have told it may be missing.
        lost: the tokens of such a load that were not brought, after another lookup in the same epoch.
        computing: up to where, in blocks, it is to compute its prompt.
    """

    chain: Chain = field(default_factory=Chain)
    untold: Untold = Untold.LOST
    block_size: int = 0
    prompt: int = 0
    epoch: int = 0
    deferred: set[str] = field(default_factory=set)
    lookups: dict[str, Lookup] = field(default_factory=dict)
    allocs: dict[str, Alloc] = field(default_factory=dict)
    open: Breakdown | None = None
    promised: tuple[int, int] = (0, 0)
    steps: int = 0
    reached: int = 0
    failed: Fact | None = None
    failed_from: int | None = None
    doubt: Untold | None = None
    lost: tuple[int, int] = (0, 0)
    computing: int = 0


def shortened(parts: Iterable[Part], computed: int, explains: Fact | None) -> list[Part]:
    """The parts of a prompt of whose load only what lies before `computed` was brought."""
    detail = Detail() if explains is None else Detail(at_ns=explains.at_ns, span_id=explains.span_id)
    made: list[Part] = []
    for part in parts:
        if part.cause is not Cause.LOADED or part.end <= computed:
            made.append(part)
            continue
        if part.start < computed:
            made.append(replace(part, tokens=computed - part.start))
        begin = max(part.start, computed)
        made.append(Part(Cause.FAILED_LOAD, part.tier, begin, part.end - begin, detail))
    return made


def doubted(parts: Iterable[Part], why: Untold) -> list[Part]:
    """The parts of a prompt of which nobody knows whether its load has failed."""
    return [
        Part(Cause.UNKNOWN, "", part.start, part.tokens, Detail(why=why)) if part.cause is Cause.LOADED else part
        for part in parts
    ]


def in_common(one: Sequence[bytes], other: Sequence[bytes], most: int) -> int:
    """How many blocks two prompts have in common: hashes that are equal stand for equal beginnings."""
    low, high = 0, min(most, len(one), len(other))
    if high == 0 or one[0] != other[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
