"""The OffloadingConnector with a tier behind host memory: what its lookups fetch, and what is fetched in vain."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from bare_scheduler import scheduler
from history import judge

from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.tracer.events.events import Event, Evict, Prefetch

CHUNK = 32
SMALL, LARGE = 500_000, 3_000_000
"""Bytes of host memory: for 15 chunks, and for all of a run."""


@pytest.fixture
def tiers(tmp_path: Path, recorded: Callable[[], list[Event]]) -> Iterator[Callable[[int], BareScheduler]]:
    stages: list[BareScheduler] = []

    def build(size: int) -> BareScheduler:
        extra = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": size,
            "secondary_tiers": [{"type": "example"}],
        }
        stages.append(scheduler(tmp_path, "TracedOffloadingConnector", extra))
        return stages[-1]

    yield build
    for stage in stages:
        stage.close()


def ask_together(bare: BareScheduler, rounds: int, *, together: int = 4) -> list[tuple[str, str]]:
    """Prefixes of ten chunks, asked for by several requests at once, again and again. Returns what the manager fetched: the
    request and the key."""
    connector: Any = bare.scheduler.connector
    manager = connector.connector_scheduler.manager
    fetched: list[tuple[str, str]] = []
    promote = manager._initiate_promotion

    def noting(tier: int, key: bytes, context: Any) -> bool:
        has_begun: bool = promote(tier, key, context)
        if has_begun:
            fetched.append((context.req_id, key[-12:-4].hex()))
        return has_begun

    manager._initiate_promotion = noting
    rng = random.Random(0)
    heads = [[rng.randrange(3, 512) for _ in range(10 * CHUNK)] for _ in range(4)]
    number = 0
    for _ in range(rounds):
        for first in range(0, len(heads), together):
            for head in heads[first : first + together]:
                bare.add(f"r-{number}", [*head, *range(3, 23)], 4)
                number += 1
            bare.run()
            bare.scheduler.reset_prefix_cache()
    return fetched


def found(events: list[Event]) -> dict[str, Any]:
    return {finding.rule: finding.numbers for held in judge(events).findings.values() for finding in held.values()}


def test_requests_that_wait_together_push_out_what_was_fetched_for_another(
    tiers: Callable[[int], BareScheduler], recorded: Callable[[], list[Event]]
) -> None:
    """vLLM #49902, in the vLLM that is installed: the probe reports it, and the rule finds it."""
    fetched = ask_together(tiers(SMALL), 3)
    events = recorded()
    reported = [
        (event.request or "", key) for event in events if isinstance(event, Prefetch) for key in event.chunk_keys or ()
    ]
    assert reported == fetched, "each fetch is reported once, in order"
    again = [pair for n, pair in enumerate(reported) if pair in reported[:n]]
    assert again
    assert {event.pool_tier for event in events if isinstance(event, Evict)} == {"cpu"}
    numbers = found(events)["evicted-in-use"]
    assert numbers["key"] in {key for _, key in again}


@pytest.mark.parametrize(("size", "together"), [(LARGE, 4), (SMALL, 1)])
def test_nothing_is_found_where_what_is_fetched_has_room_until_it_is_loaded(
    tiers: Callable[[int], BareScheduler], recorded: Callable[[], list[Event]], size: int, together: int
) -> None:
    fetched = ask_together(tiers(size), 3, together=together)
    assert bool(fetched) == (size == SMALL)
    assert found(recorded()) == {}
