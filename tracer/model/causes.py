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
    """What would show its cause was not recorded, or was lost."""
    NOT_COMPUTED = "not-computed"
    """It was neither reused nor computed: the request ended before, or its engine. Said of a request once it has ended; sums
    of admissions do not have it."""


PEER = "p2p"
"""The tier of what another engine hands over, as vLLM calls it."""
REUSED = (Cause.HELD, Cause.LOADED)
"""The causes of tokens that are not computed."""


class NotRecorded(StrEnum):
    """Why a cause is unknown: what would show it."""

    BLOCK_HASHES = "block_hashes"
    """The hashes of the request's blocks were not recorded, by the setting `block_hashes` or at level `basic`."""
    CHAIN = "chain"
    """The request's prompt begins like another's, and the hashes of that one were lost or forgotten."""
    CACHE_EVENTS = "cache_events"
    """What vLLM's own cache gains and loses was not recorded, by the setting `block_hashes`, at level `basic`, or because
    this vLLM cannot."""
    GROUPS = "groups"
    """The model has several KV cache groups, and what a hit needs of one of them, or what the connector holds of each, is not
    known."""
    PROBE = "probe"
    """What the connector's store gains and loses is not recorded: it has no probe that can see it."""
    FLEET = "fleet"
    """This engine never computed it. The hashes of other engines of the model cannot be compared."""
    LOST = "lost"
    """Events are missing that may show it."""
    LATE = "late"
    """It may have happened before the first received event."""
    CONTRADICTION = "contradiction"
    """What a cache reported and what it answered contradict each other."""
    ORDER = "order"
    """Several caches have lost it, and which was the last is not known."""


class Detail(Struct, frozen=True, gc=False, omit_defaults=True):
    """The details of a part. Empty fields are not known, or do not apply.

    Attributes:
        why: for `unknown`, what would show the cause (`NotRecorded`).
        at_ns: when it happened, Unix nanoseconds.
        span_id: the event that shows it.
        request: the request for which room was made, or that computes the block now.
        engine: the other engine: for `elsewhere`, and of what it has handed over (the tier `p2p`).
        unstored: why the connector's store never had it: `full`, `failed`, `partial`, or `unasked`.
        refusal: why what a connector's store held was not used: the connector offered none of it (`declined`), or less
            (`capped`), or none after answering 'ask me later' (`given-up`); or vLLM did not take it (`untaken`), or the
            guard took the offer back (`guarded`). For `elsewhere`, on an engine to which others hand over: that this was not
            handed over to the request (`not-handed`).
        group, group_kind: of several KV cache groups, the number of the one that had lost its part, or never had it, and its
            kind.
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
        tier: the cache that is meant: `gpu` for vLLM's own, else the connector's name for it; empty where none is.
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
        """As JSON-ready data, without what is empty."""
        return {
            "cause": self.cause.value,
            "tier": self.tier,
            "start": self.start,
            "tokens": self.tokens,
            **to_builtins(self.detail),
        }
