"""What is remembered of a cache, and what is left of it when that is too much."""

from __future__ import annotations

import random

import pytest

from kvtrail.tracer.causes import cache_model as memories
from kvtrail.tracer.causes.cache_model import BlockChange, BlockState, CacheModel
from kvtrail.tracer.causes.eviction_history import EvictionHistory
from kvtrail.tracer.model.causes import NotRecorded


def key(number: int) -> bytes:
    return random.Random(number).randbytes(8)


def states(cache: CacheModel, numbers: range) -> list[BlockState | None]:
    facts = cache.states([key(n) for n in numbers], lambda _: False)
    return [None if fact is None else fact.state for fact in facts]


def test_of_many_keys_the_oldest_keep_their_fate_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "MAX_KEYS", 100)
    cache = CacheModel("gpu")
    cache.is_reported = True
    for number in range(1000):
        cache.record(
            [key(number)],
            BlockChange(BlockState.EVICTED if number % 2 else BlockState.HELD, number + 1, span_id=f"{number}"),
        )
    assert states(cache, range(1000)) == [
        BlockState.EVICTED if number % 2 else BlockState.HELD for number in range(1000)
    ]
    assert [fact and fact.span_id for fact in map(cache.last, (key(999), key(1)))] == ["999", ""]
    assert states(cache, range(1000, 3000)) == [None] * 2000
    assert len(cache._facts) <= 112


def test_a_state_that_is_reported_again_is_the_last_one_even_after_it_was_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memories, "MAX_KEYS", 10)
    cache = CacheModel("gpu")
    cache.is_reported = True
    for turn, state in enumerate((BlockState.HELD, BlockState.EVICTED, BlockState.HELD, BlockState.EVICTED)):
        for number in range(100):
            cache.record([key(number)], BlockChange(state, 100 * turn + number))
    assert states(cache, range(100)) == [BlockState.EVICTED] * 100


def test_what_was_held_when_the_cache_was_emptied_was_lost_by_that() -> None:
    cache = CacheModel("gpu")
    cache.is_reported = True
    cache.record([key(1)], BlockChange(BlockState.HELD, 1))
    cache.record([key(2)], BlockChange(BlockState.EVICTED, 2))
    cache.clear(BlockChange(BlockState.RESET, 3))
    cache.record([key(3)], BlockChange(BlockState.HELD, 4))
    assert states(cache, range(5)) == [None, BlockState.RESET, BlockState.EVICTED, BlockState.HELD, None]
    cache.clear(BlockChange(BlockState.RESET, 5))
    assert [fact and fact.number for fact in cache.states([key(1), key(3)], lambda _: False)] == [3, 5]


def test_after_a_loss_an_emptied_cache_holds_nothing_old() -> None:
    cache = CacheModel("gpu")
    cache.is_reported = True
    cache.record([key(1)], BlockChange(BlockState.HELD, 1))
    cache.mark_gap(5, NotRecorded.LOST)
    assert states(cache, range(3)) == [BlockState.UNSURE] * 3
    cache.clear(BlockChange(BlockState.RESET, 7))
    assert states(cache, range(3)) == [BlockState.ABSENT] * 3


def keys(numbers: range) -> list[bytes]:
    return [key(number) for number in numbers]


def test_the_past_is_seldom_wrong_about_keys_that_it_never_had() -> None:
    past = EvictionHistory()
    assert past.codes([key(1), key(2)]) == [0, 0]
    reported = [1 + number % 3 for number in range(20_000)]
    past.add(keys(range(20_000)), reported)
    assert past.codes(keys(range(20_000))) == reported
    past.add([key(7)], [9])
    assert past.codes(keys(range(6, 9))) == [1, 9, 3]
    assert sum(map(bool, past.codes(keys(range(100_000, 140_000))))) <= 2


def test_where_too_many_keys_share_a_place_the_first_leaves_first() -> None:
    past = EvictionHistory()
    together = [(n << 40 | 5).to_bytes(8) for n in range(1, 10)]
    past.add(together, [3] * 9)
    assert past.codes(together) == [0, *[3] * 8]


def test_for_a_key_reported_twice_at_once_the_history_has_the_later_code() -> None:
    past = EvictionHistory()
    past.add([key(1), key(2), key(1)], [1, 2, 3])
    assert past.codes([key(1), key(2)]) == [3, 2]
