"""The curve beside the stores of libCacheSim, where each access is of one chunk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import libcachesim
import pytest
from test_curve import curve_of

from kvtrail.tracer.capacity.accesses import Access

CAPACITIES = (1, 2, 5, 20, 80, 320)


def uses(seed: int, count: int = 3000) -> list[int]:
    """Chunks; a few of them are used often."""
    rng = random.Random(seed)
    return [min(int(rng.paretovariate(0.5)), 5000) + rng.randrange(3) for _ in range(count)]


def hits(store: Any, chunks: Sequence[int]) -> int:
    """How many uses a store of libCacheSim answers."""
    given = 0
    for at, chunk in enumerate(chunks):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = chunk, 1, at
        given += store.get(request)
    return given


@pytest.mark.parametrize("seed", range(4))
def test_the_curve_is_that_of_its_least_recently_used_stores(seed: int) -> None:
    chunks = uses(seed)
    curve = curve_of([Access([chunk.to_bytes(8)], [1]) for chunk in chunks])
    ours = [round(share.share * curve.wanted) for share in curve.hits(CAPACITIES)]
    assert ours == [hits(libcachesim.LRU(cache_size=capacity), chunks) for capacity in CAPACITIES]
    assert 0 < ours[1] < ours[-1]
