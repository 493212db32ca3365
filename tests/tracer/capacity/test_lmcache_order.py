"""LMCache's own eviction order; beside real runs of it in tests/e2e/test_lmcache_capacity.py."""

from __future__ import annotations

import pytest

from kvtrail.tracer.capacity.accesses import Access
from kvtrail.tracer.capacity.estimate import estimate
from kvtrail.tracer.capacity.lmcache_order import lmcache_hits
from kvtrail.tracer.capacity.stream import Stream


def chunks(keys: str) -> list[bytes]:
    """A chunk for each letter."""
    return [key.encode() for key in keys]


def asked(keys: str) -> Access:
    """A lookup of chunks of 10 tokens each, none used at once, and what is stored once it is computed."""
    return Access(chunks(keys), [10] * len(keys), 0)


def stored(keys: str) -> Access:
    return Access(chunks(keys))


def test_the_head_of_a_new_prefix_is_evicted_first() -> None:
    accesses = [asked("abc"), stored("abc"), asked("x"), stored("x"), asked("abc")]
    assert lmcache_hits(accesses, 4) == 30
    assert lmcache_hits(accesses, 3) == 0, "a has made room for x"


def test_the_end_of_a_prefix_that_was_hit_is_evicted_first() -> None:
    accesses = [asked("abc"), stored("abc"), asked("abc"), asked("x"), stored("x"), asked("abc")]
    assert lmcache_hits(accesses, 3) == 30 + 20


def test_what_is_there_is_not_stored_again() -> None:
    accesses = [asked("a"), stored("a"), asked("b"), stored("b"), stored("a"), asked("c"), stored("c"), asked("a")]
    assert lmcache_hits(accesses, 2) == 0, "computing a chunk again is no use of the stored one"


def test_an_emptied_store_has_no_hits() -> None:
    assert lmcache_hits([asked("a"), stored("a"), None, asked("a")], 9) == 0


@pytest.mark.parametrize("connector", ["LMCacheConnectorV1", "LMCacheConnectorV1Dynamic"])
def test_lmcache_is_estimated_in_its_own_order_unless_chunks_are_sampled(connector: str) -> None:
    accesses: list[Access | None] = [asked("abc"), stored("abc"), asked("abc"), asked("x"), stored("x"), asked("abc")]
    stream = Stream("engine", connector, 10, accesses=accesses)
    assert [point.hits for point in estimate(stream, sizes=(3,)).points] == [50]
    assert [point.hits for point in estimate(stream, sizes=(3,), most_chunks=9).points] == [30]
