"""Profiles of pairs of engines, for connectors by which one engine hands over to another."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from kvtrail.connector.simulate.pairs.pair_scenario import drawn, with_pair
from kvtrail.connector.simulate.pairs.pairs import hands_over
from kvtrail.connector.simulate.scenario import Scenario


def handoffs(rng: random.Random) -> Scenario:
    """One engine prefills and another one decodes: requests queue and are aborted at every point of the hand-off,
    messages come late and out of order, leases run out, and some transfers fail."""
    return drawn(rng.randrange(10**6), failing=rng.choice((0.0, 0.2)))


def handoff_ranks(rng: random.Random) -> Scenario:
    """The same with two tensor-parallel ranks in either engine, or in both."""
    prefill_ranks, decode_ranks = rng.choice(((1, 2), (2, 1), (2, 2)))
    return with_pair(handoffs(rng), prefill_ranks=prefill_ranks, decode_ranks=decode_ranks)


PAIR_PROFILES: dict[str, Callable[[random.Random], Scenario]] = {
    "handoffs": handoffs,
    "handoff-ranks": handoff_ranks,
}
"""The profiles of pairs. They come first, where they can be run."""


def pair_of(profile: str, seed: int) -> Scenario:
    """The scenario of a profile and a seed: always the same."""
    return PAIR_PROFILES[profile](random.Random(f"{profile}/{seed}"))


def can_be_paired(connector: str, config: Mapping[str, Any] | None) -> bool:
    """Whether engines with this connector can hand over to each other in one process, by itself or by one of its children."""
    children = (config or {}).get("connectors", ())
    return any(map(hands_over, (connector, *(child.get("kv_connector", "") for child in children))))
