"""Features that a version of vLLM, or its log, does not show of its connectors. The recorder detects them at start-up and
declares them in the resource attribute `semconv.LACKS`, so that a rule whose events cannot exist is `unknown`, not silent."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

from kvtrail.tracer.events.semconv import Kind


class Lack(StrEnum):
    """A value of the attribute."""

    REQUEST_STARTS = "request_starts"
    """No request is announced: it begins at its first lookup. A request that ends before its first lookup is not seen."""
    HIT_SOURCES = "hit_sources"
    """The source of a hit is not reported."""
    BLOCK_TABLES = "block_tables"
    """The connector does not get the KV cache manager, so no block table is reported again after a loss."""
    STATISTICS = "statistics"
    """Requests carry no statistics of their prefill."""
    PREFIX_CACHE = "prefix_cache"
    """The implementation of vLLM's own prefix cache does not allow its changes to be followed."""
    PLANS = "plans"
    """The connector's plans have a form that its probe does not know."""
    CATCHES = "catches"
    """It is not known whether an exception is caught: only an end record says that the engine died of it. Logs lack this."""


_KINDS = {
    Lack.STATISTICS: {Kind.STATS},
    Lack.PREFIX_CACHE: {Kind.PREFIX_CACHE},
    Lack.PLANS: {Kind.LOAD_PLAN, Kind.STORE_PLAN, Kind.TRANSFER_END, Kind.FLUSH},
}
"""The kinds of events that are never recorded, by lack. The other lacks affect only attributes, or recovery from a loss."""


def declaration(lacks: Iterable[Lack]) -> str:
    """The attribute's value: the names, with commas between them."""
    return ",".join(sorted(lacks))


@lru_cache(maxsize=64)
def shows_catches(declared: str | None) -> bool:
    """Whether an exception that is reported by a recorder with this value is an uncaught one."""
    return declared is None or Lack.CATCHES not in declared.split(",")


@lru_cache(maxsize=64)
def kinds_missing(declared: str) -> frozenset[Kind]:
    """The kinds of events that a recorder with this value never sends. Unknown names, from a newer kvtrail, are ignored."""
    return frozenset(kind for lack, kinds in _KINDS.items() if lack in declared.split(",") for kind in kinds)
