"""What is remembered of a cache, and what is left of it when that is too much."""

from __future__ import annotations

import random

import pytest

from kvtrail.tracer.causes import memory as memories
from kvtrail.tracer.causes.memory import Fact, Fate, Memory
from kvtrail.tracer.causes.past import Past
from kvtrail.tracer.model.causes import Untold


def key(number: int) -> bytes:
    return random.Random(number).randbytes(8)


def fates(memory: Memory, numbers: range) -> list[Fate | None]:
    facts = memory.fates([key(n) for n in numbers], lambda _: False)
    return [None if fact is None else fact.fate for fact in facts]


def test_of_many_keys_the_oldest_keep_their_fate_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "MOST_KEYS", 100)
    memory = Memory("gpu")
    memory.told = True
    for number in range(1000):
        memory.tell([key(number)], Fact(Fate.EVICTED if number % 2 else Fate.HELD, number + 1, span_id=f"{number}"))
    assert fates(memory, range(1000)) == [Fate.EVICTED if number % 2 else Fate.HELD for number in range(1000)]
    assert [fact and fact.span_id for fact in map(memory.last, (key(999), key(1)))] == ["999", ""]
    assert fates(memory, range(1000, 3000)) == [None] * 2000
    assert len(memory._young) + len(memory._old) <= 200


def test_a_fate_that_is_told_again_is_the_last_one_also_after_it_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "MOST_KEYS", 10)
    memory = Memory("gpu")
    memory.told = True
    for turn, fate in enumerate((Fate.HELD, Fate.EVICTED, Fate.HELD, Fate.EVICTED)):
        for number in range(100):
            memory.tell([key(number)], Fact(fate, 100 * turn + number))
    assert fates(memory, range(100)) == [Fate.EVICTED] * 100


def test_what_was_held_when_the_cache_was_emptied_was_lost_by_that() -> None:
    memory = Memory("gpu")
    memory.told = True
    memory.tell([key(1)], Fact(Fate.HELD, 1))
    memory.tell([key(2)], Fact(Fate.EVICTED, 2))
    memory.clear(Fact(Fate.RESET, 3))
    memory.tell([key(3)], Fact(Fate.HELD, 4))
    assert fates(memory, range(5)) == [None, Fate.RESET, Fate.EVICTED, Fate.HELD, None]
    memory.clear(Fact(Fate.RESET, 5))
    assert [fact and fact.number for fact in memory.fates([key(1), key(3)], lambda _: False)] == [3, 5]


def test_after_a_loss_an_emptied_cache_holds_nothing_old() -> None:
    memory = Memory("gpu")
    memory.told = True
    memory.tell([key(1)], Fact(Fate.HELD, 1))
    memory.lose(5, Untold.LOST)
    assert fates(memory, range(3)) == [Fate.UNSURE] * 3
    memory.clear(Fact(Fate.RESET, 7))
    assert fates(memory, range(3)) == [Fate.ABSENT] * 3


def keys(numbers: range) -> list[bytes]:
    return [key(number) for number in numbers]


def test_the_past_is_seldom_wrong_about_keys_that_it_never_had() -> None:
    past = Past()
    assert past.codes([key(1), key(2)]) == [0, 0]
    told = [1 + number % 3 for number in range(20_000)]
    past.add(keys(range(20_000)), told)
    assert past.codes(keys(range(20_000))) == told
    past.add([key(7)], [9])
    assert past.codes(keys(range(6, 9))) == [1, 9, 3]
    assert sum(map(bool, past.codes(keys(range(100_000, 140_000))))) <= 2


def test_where_too_many_keys_share_a_place_the_first_leaves_first() -> None:
    past = Past()
    together = [(n << 40 | 5).to_bytes(8) for n in range(1, 10)]
    past.add(together, [3] * 9)
    assert past.codes(together) == [0, *[3] * 8]


def test_of_a_key_that_is_told_twice_at_once_the_past_has_the_later_code() -> None:
    past = Past()
    past.add([key(1), key(2), key(1)], [1, 2, 3])
    assert past.codes([key(1), key(2)]) == [3, 2]
