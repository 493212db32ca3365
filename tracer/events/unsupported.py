"""What a vLLM, or its log, does not show of its connectors. The recorder looks for it at start-up and says so in the resource
attribute `semconv.LACKS`, so that rules are `unknown` where their events cannot exist, and not silent."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

from kvtrail.tracer.events.semconv import Kind


class Lack(StrEnum):
    """A value of the attribute."""

    REQUEST_STARTS = "request_starts"
    """No request is announced: it begins at its first lookup, and one that leaves before that is not seen."""
    HIT_SOURCES = "hit_sources"
    """Nobody says where a hit comes from."""
    BLOCK_TABLES = "block_tables"
    """The connector does not get the KV cache manager, so no block table is reported again after a loss."""
    STATISTICS = "statistics"
    """Requests carry no statistics of their prefill."""
    PREFIX_CACHE = "prefix_cache"
    """Its own prefix cache has a form in which its changes cannot be followed."""
    PLANS = "plans"
    """What the connector plans has a form that its probe does not know."""
    CATCHES = "catches"
    """Who catches an exception: only an end record says that the engine died of it. So it is with logs."""


_KINDS = {
    Lack.STATISTICS: {Kind.STATS},
    Lack.PREFIX_CACHE: {Kind.PREFIX_CACHE},
    Lack.PLANS: {Kind.LOAD_PLAN, Kind.STORE_PLAN, Kind.TRANSFER_END, Kind.FLUSH},
}
"""The kinds of events that are never recorded. The other lacks cost attributes, or what only a loss makes necessary."""


def declaration(lacks: Iterable[Lack]) -> str:
    """The attribute's value: the names, with commas between them."""
    return ",".join(sorted(lacks))


@lru_cache(maxsize=64)
def shows_catches(declared: str | None) -> bool:
    """Whether an exception that a recorder with this value reports is one that nobody catches."""
    return declared is None or Lack.CATCHES not in declared.split(",")


@lru_cache(maxsize=64)
def kinds_missing(declared: str) -> frozenset[Kind]:
    """The kinds of events that a recorder with this value never sends. Names that a newer kvtrail adds are passed over."""
    return frozenset(kind for lack, kinds in _KINDS.items() if lack in declared.split(",") for kind in kinds)
