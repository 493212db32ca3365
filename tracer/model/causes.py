"""The causes that a token of a prompt can have, and a part of a prompt with one cause."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct


class Cause(StrEnum):
    """Why a token was reused, or had to be computed. Of several that are true of a block it is the first one."""

    HELD = "held"
    """vLLM's own prefix cache held it."""
    LOADED = "loaded"
    """The connector loaded it."""
    LAST_TOKEN = "last-token"
    """The last full block is held, and computed again by rule: the last token of a prompt is, for its logits."""
    UNALIGNED = "unaligned"
    """It lies after the last full block: only full blocks are reused."""
    STRANDED = "stranded"
    """A cache holds it, but not all that comes before it."""
    PENDING = "pending"
    """A running request has it in its own prompt and has not computed it yet, or its store is under way."""
    REFUSED = "refused"
    """A cache holds it and all that comes before it, and it was not given, or not taken."""
    FAILED_LOAD = "failed-load"
    """It was promised, and its load failed."""
    EVICTED = "evicted"
    """It was held, and has made room for something else."""
    RESET = "reset"
    """It was held, until the cache was emptied."""
    ELSEWHERE = "elsewhere"
    """It was computed by another engine, and never by this one."""
    NEW = "new"
    """It was never computed before."""
    UNKNOWN = "unknown"
    """What would tell its cause was not recorded, or was lost."""


REUSED = (Cause.HELD, Cause.LOADED)
"""The causes of tokens that are not computed."""


class Untold(StrEnum):
    """Why a cause is unknown: what would tell it."""

    BLOCK_HASHES = "block_hashes"
    """The hashes of the request's blocks were not recorded, by the setting `block_hashes` or at level `basic`."""
    CHAIN = "chain"
    """The request's prompt begins like another's, whose hashes were lost or are forgotten."""
    CACHE_EVENTS = "cache_events"
    """What vLLM's own cache gains and loses was not recorded, by the setting `cache_events`, at level `basic`, or because
    this vLLM cannot."""
    GROUPS = "groups"
    """The model has several KV cache groups, and only the first one's blocks are followed: it holds the block."""
    PROBE = "probe"
    """What the connector's store gains and loses is not told: it has no probe that can see it."""
    FLEET = "fleet"
    """This engine never computed it. Other engines of the model are heard whose hashes cannot be compared."""
    LOST = "lost"
    """Events are missing that may have told it."""
    LATE = "late"
    """It may have happened before the first event that was heard."""
    CONTRADICTION = "contradiction"
    """What was told of a cache and what it answered cannot both be true."""
    ORDER = "order"
    """Several caches have lost it, and it is not known which of them was the last."""


class Detail(Struct, frozen=True, gc=False):
    """What explains a part. Empty fields are not known, or do not apply.

    Attributes:
        why: of `unknown`, what would tell (`Untold`).
        at_ns: when it happened, Unix nanoseconds.
        span_id: the event that shows it.
        request: who did it: the request for which room was made, or that computes the block now.
        engine: of `elsewhere`, the other engine.
        unstored: why the connector's store never had it: `full`, `failed`, `partial`, or `unasked`.
        refusal: of what a connector's store held, where it got lost: the connector offered none of it (`declined`), or less
            (`capped`), or none in the end after it had asked for time (`given-up`); or vLLM did not take it (`untaken`).
    """

    why: str = ""
    at_ns: int = 0
    span_id: str = ""
    request: str = ""
    engine: str = ""
    unstored: str = ""
    refusal: str = ""


NOTHING = Detail()


class Part(Struct, frozen=True, gc=False):
    """A run of tokens of a prompt with one cause.

    Attributes:
        cause: why they were reused or computed.
        tier: the cache that is meant: `gpu` for vLLM's own, else the connector's name for it; empty where none is.
        start: the first of them.
        tokens: how many they are.
        detail: what explains it.
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
        data: dict[str, Any] = {
            "cause": self.cause.value,
            "tier": self.tier,
            "start": self.start,
            "tokens": self.tokens,
        }
        detail = {name: value for name in Detail.__struct_fields__ if (value := getattr(self.detail, name))}
        return {**data, **detail}
