"""Between which moments events are missing, whatever the order in which they come."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kvtrail.tracer.ledger.ordering import MAX_GAPS, Gap, Gaps


def gaps_of(numbers: list[int]) -> Gaps:
    gaps = Gaps()
    for number in numbers:
        gaps.enter(number, number * 10)
    return gaps


def test_a_gap_lies_between_its_neighbours_and_closes_from_both_sides() -> None:
    gaps = gaps_of([0, 1, 6])
    assert gaps.within(0, 100) == [Gap(2, 5, 10, 60)]
    gaps.enter(4, 40)
    assert gaps.within(0, 100) == [Gap(2, 3, 10, 40), Gap(5, 5, 40, 60)]
    assert [gap.missing for gap in gaps.within(0, 100)] == [2, 1]
    for number in (5, 2, 3):
        gaps.enter(number, number * 10)
    assert gaps.within(0, 100) == []


def test_only_those_of_the_window() -> None:
    gaps = gaps_of([0, 2, 4, 9])
    assert [gap.first for gap in gaps.within(15, 25)] == [1, 3]
    assert gaps.within(200, 300) == []


def test_a_repeated_number_changes_nothing() -> None:
    gaps = gaps_of([0, 5])
    before = gaps.within(0, 100)
    gaps.enter(5, 50)
    gaps.enter(0, 0)
    assert gaps.within(0, 100) == before


@given(st.sets(st.integers(0, 40), min_size=1), st.randoms(use_true_random=False))
def test_what_is_missing_is_the_same_in_any_order(numbers: set[int], dice: random.Random) -> None:
    order = sorted(numbers)
    dice.shuffle(order)
    # What was before the first that was heard, cannot be known to exist.
    missing = {n for n in range(order[0], max(numbers) + 1) if n not in numbers}
    found = {n for gap in gaps_of(order).within(0, 1000) for n in range(gap.first, gap.last + 1)}
    assert found == missing


def test_there_is_an_end_to_it() -> None:
    gaps = gaps_of(list(range(0, 6 * MAX_GAPS, 2)))
    assert len(gaps.within(0, 10**9)) == MAX_GAPS


@given(st.lists(st.lists(st.integers(0, 12), min_size=1), min_size=1))
def test_events_that_arrive_together_leave_the_gaps_of_those_that_arrive_alone(batches: list[list[int]]) -> None:
    together = Gaps()
    for batch in batches:
        together.enter_all(batch, [number * 10 for number in batch])
    assert together == gaps_of([number for batch in batches for number in batch])


def test_a_batch_may_continue_the_one_before_it() -> None:
    gaps = gaps_of([0, 1])
    gaps.enter_all([2, 3, 4], [20, 30, 40])
    gaps.enter_all([7], [70])
    assert gaps.within(0, 100) == [Gap(5, 6, 40, 70)]
