"""LMCache's own order of eviction; beside real runs of it in tests/e2e/test_lmcache_capacity.py."""

from __future__ import annotations

import pytest

from kvtrail.tracer.capacity.estimate import estimate
from kvtrail.tracer.capacity.found_and_stored import given_by
from kvtrail.tracer.capacity.stream import Stream
from kvtrail.tracer.capacity.touches import Touch


def chunks(keys: str) -> list[bytes]:
    """A chunk for each letter."""
    return [key.encode() for key in keys]


def asked(keys: str) -> Touch:
    """A lookup of chunks of 10 tokens each, none of which is used at once, and what is stored once it is computed."""
    return Touch(chunks(keys), [10] * len(keys), 0)


def stored(keys: str) -> Touch:
    return Touch(chunks(keys))


def test_of_a_new_prefix_the_head_goes_first() -> None:
    touches = [asked("abc"), stored("abc"), asked("x"), stored("x"), asked("abc")]
    assert given_by(touches, 4) == 30
    assert given_by(touches, 3) == 0, "a has made room for x"


def test_of_a_prefix_that_was_found_the_end_goes_first() -> None:
    touches = [asked("abc"), stored("abc"), asked("abc"), asked("x"), stored("x"), asked("abc")]
    assert given_by(touches, 3) == 30 + 20


def test_what_is_there_is_not_stored_again() -> None:
    touches = [asked("a"), stored("a"), asked("b"), stored("b"), stored("a"), asked("c"), stored("c"), asked("a")]
    assert given_by(touches, 2) == 0, "to be computed again is no use of what is stored"


def test_an_emptied_store_gives_nothing() -> None:
    assert given_by([asked("a"), stored("a"), None, asked("a")], 9) == 0


@pytest.mark.parametrize("connector", ["LMCacheConnectorV1", "LMCacheConnectorV1Dynamic"])
def test_it_is_what_is_reckoned_for_lmcache_unless_chunks_are_sampled(connector: str) -> None:
    touches: list[Touch | None] = [asked("abc"), stored("abc"), asked("abc"), asked("x"), stored("x"), asked("abc")]
    stream = Stream("engine", connector, 10, touches=touches)
    assert [point.hits for point in estimate(stream, sizes=(3,)).points] == [50]
    assert [point.hits for point in estimate(stream, sizes=(3,), most_chunks=9).points] == [30]
