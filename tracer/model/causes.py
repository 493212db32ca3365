"""The causes that a token of a prompt can have, and a part of a prompt with one cause."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, to_builtins


class Cause(StrEnum):
    """Why a token was reused or computed. Where several apply to a block, the first one counts."""

    HELD = "held"
    """vLLM's own prefix cache held it."""
    LOADED = "loaded"
    """The connector loaded it."""
    LAST_TOKEN = "last-token"
    """The last full block is held, and recomputed: vLLM always computes the last token of a prompt, for its logits."""
    UNALIGNED = "unaligned"
    """It lies in the partial last block: only full blocks are reused."""
    STRANDED = "stranded"
    """A cache holds it, but not all that comes before it."""
    PENDING = "pending"
    """A running request has it in its own prompt and has not computed it yet, or its store is under way."""
    REFUSED = "refused"
    """A cache holds it and all that comes before it, or another engine has handed it over, but the connector did not offer
    it, or vLLM did not take it."""
    FAILED_LOAD = "failed-load"
    """The connector promised it, and its load failed."""
    EVICTED = "evicted"
    """It was held, and evicted to make room."""
    RESET = "reset"
    """It was held until the cache was reset."""
    UNCACHED = "uncached"
    """It was computed, but one of several KV cache groups never cached what a hit needs of it."""
    ELSEWHERE = "elsewhere"
    """It was computed by another engine, and never by this one."""
    NEW = "new"
    """It was never computed before."""
    UNKNOWN = "unknown"
    """The events that would show its cause were not recorded, or were lost."""
    NOT_COMPUTED = "not-computed"
    """It was neither reused nor computed, because the request or its engine ended before. Only an ended request has this
    cause; sums of admissions do not."""


PEER = "p2p"
"""The tier of KV that another engine hands over, as vLLM calls it."""
REUSED = (Cause.HELD, Cause.LOADED)
"""The causes of tokens that are not computed."""


class NotRecorded(StrEnum):
    """Why a cause is unknown: the information that would show it."""

    BLOCK_HASHES = "block_hashes"
    """The hashes of the request's blocks were not recorded, by the setting `block_hashes` or at level `basic`."""
    CHAIN = "chain"
    """The request's prompt begins like another request's, and the hashes of the other were lost or forgotten."""
    CACHE_EVENTS = "cache_events"
    """The changes of vLLM's own cache were not recorded: by the setting `block_hashes`, at level `basic`, or because this
    version of vLLM cannot report them."""
    GROUPS = "groups"
    """The model has several KV cache groups. The blocks that a hit needs of one of them, or that the connector holds of each,
    are unknown."""
    PROBE = "probe"
    """The changes of the connector's store are not recorded: it has no probe that can see them."""
    FLEET = "fleet"
    """This engine never computed it. The hashes of other engines of the model cannot be compared."""
    LOST = "lost"
    """Events are missing that may show it."""
    LATE = "late"
    """It may have happened before the first received event."""
    CONTRADICTION = "contradiction"
    """A cache's reports and its answers contradict each other."""
    ORDER = "order"
    """Several caches lost it, and it is unknown which lost it last."""


class Detail(Struct, frozen=True, gc=False, omit_defaults=True):
    """The details of a part. Empty fields are not known, or do not apply.

    Attributes:
        why: for `unknown`, the information that would show the cause (`NotRecorded`).
        at_ns: when it happened, Unix nanoseconds.
        span_id: the event that shows it.
        request: the request for which room was made, or that computes the block now.
        engine: the other engine, for `elsewhere` and for KV that it handed over (tier `p2p`).
        unstored: why the connector's store never had it: `full`, `failed`, `partial`, or `unasked`.
        refusal: why KV in a connector's store was not used: the connector offered none of it (`declined`), or less
            (`capped`), or none after answering 'ask me later' (`given-up`); or vLLM did not take it (`untaken`), or the
            guard withdrew the offer (`guarded`). For `elsewhere`, on an engine to which others hand over: the KV was not
            handed over to the request (`not-handed`).
        group, group_kind: with several KV cache groups, the number and the kind of the group that had lost its part, or
            never had it.
    """

    why: str = ""
    at_ns: int = 0
    span_id: str = ""
    request: str = ""
    engine: str = ""
    unstored: str = ""
    refusal: str = ""
    group: int | None = None
    group_kind: str = ""


NOTHING = Detail()


class Part(Struct, frozen=True, gc=False):
    """A run of tokens of a prompt with one cause.

    Attributes:
        cause: why they were reused or computed.
        tier: the cache concerned: `gpu` for vLLM's own, else the connector's name for it; empty if there is none.
        start: the first of them.
        tokens: their number.
        detail: its details.
    """

    cause: Cause
    tier: str
    start: int
    tokens: int
    detail: Detail = NOTHING

    @property
    def end(self) -> int:
        """The token after the last."""
        return self.start + self.tokens

    def as_dict(self) -> dict[str, Any]:
        """As JSON-ready data, without empty fields."""
        detail: dict[str, Any] = to_builtins(self.detail)
        return {"cause": self.cause.value, "tier": self.tier, "start": self.start, "tokens": self.tokens} | detail
