"""The parts of minimizing: what events rest on, how a choice shrinks, how it is numbered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from history import history
from msgspec.structs import replace

from kvtrail.tracer.history.numbering import Numbering
from kvtrail.tracer.history.prerequisites import prerequisites
from kvtrail.tracer.history.shrink import inverted, shrunk


@pytest.mark.parametrize(
    ("line", "rests_on"),
    [
        ("L 300 c0 -> 0", {"start", "P"}),
        ("A 0", {"start", "P", "L 300 c0 -> 0"}),
        ("S 0+96", {"start", "P", "A 0"}),
        ("S 96+48", {"start", "P", "S 0+96"}),
        ("plan load 0+64 #3", {"start", "P", "A 0"}),
        ("plan store 0+64 #4", {"start", "P", "S 0+96"}),
        ("load 64", {"start", "P", "plan load 0+64 #3"}),
        ("store 0+64", {"start", "P", "plan store 0+64 #4"}),
        ("done #4", {"start", "P", "plan store 0+64 #4"}),
        ("flush #4", {"start", "P", "plan store 0+64 #4"}),
        ("error [4]", {"start", "P", "A 0"}),
        ("R", {"start", "P", "A 0"}),
        ("end delayed", {"start", "P"}),
        ("sent", {"start", "P", "end delayed"}),
        ("freed", {"start", "P", "end delayed"}),
        ("read", {"start", "P", "end delayed"}),
        ("reset", set()),
    ],
)
def test_what_an_event_rests_on(line: str, rests_on: set[str]) -> None:
    """In the second epoch; nothing rests on what the first one had besides its preemption."""
    first = ["start", "L 300 c0 h64 -> 64", "A 64", "S 64+48", "plan store 0+64 #1", "P"]
    second = [
        "L 300 c0 -> 0", "A 0", "S 0+96", "S 96+48", "plan load 0+64 #3", "plan store 0+64 #4", "load 64", "store 0+64",
        "done #4", "flush #4", "error [4]", "R", "end delayed", "sent", "freed", "read", "reset",
    ]  # fmt: skip
    lines = [*first, *second]
    needed = prerequisites(history("\n".join(lines[1:])))
    assert {lines[index] for index in needed[lines.index(line)]} == rests_on


def test_a_preemption_rests_on_a_step_and_on_the_preemption_before() -> None:
    lines = ["start", "L 300 c0 -> 0", "A 0", "S 0+96", "P", "L 300 c0 -> 0", "A 0", "S 0+48", "P"]
    needed = prerequisites(history("\n".join(lines[1:])))
    assert (needed[4], needed[8]) == ((0, 3), (0, 4, 7))


def test_a_transfer_that_outlives_its_epoch_rests_on_its_plan() -> None:
    needed = prerequisites(history("L 300 c0 -> 0\nA 0\nS 0+96\nplan store 0+64 #1\nP\ndone #1"))
    assert needed[6] == (0, 4, 5)


def test_of_an_id_that_is_used_again_all_of_the_request_before_rests_on_its_end() -> None:
    first = history("L 300 c0 -> 0\nA 0\nend")
    needed = prerequisites([*first, *(replace(event, sequence=event.sequence + len(first)) for event in first)])
    assert needed == [(3,), (0, 3), (0, 1, 3), (0,), (), (4,), (4, 5), (4,)]


def test_requests_and_engines_with_the_same_id_do_not_rest_on_each_other() -> None:
    needed = prerequisites(history("b: L 90 c0 -> 0\n<other> L 300 c0 -> 0\n<other> A 0\nb: A 0"))
    assert needed[-1] == (0, 1)


def test_a_choice_shrinks_until_no_single_one_can_go() -> None:
    """3 can go only after 0 has gone, which is tried later."""

    def holds(kept: Sequence[int]) -> bool:
        return {1, 2} <= set(kept) and (3 in kept or 0 not in kept)

    nothing: list[tuple[int, ...]] = [()] * 4
    assert list(shrunk(range(4), [[0], [1], [2], [3]], dependents=nothing, holds=holds)) == [1, 2]


def test_what_rests_on_something_goes_with_it() -> None:
    tried: list[list[int]] = []

    def holds(kept: Sequence[int]) -> bool:
        tried.append(list(kept))
        return 3 in kept

    resting = inverted([(), (0,), (1,), ()])
    assert resting == [[1], [2], [], []]
    assert list(shrunk(range(4), [[0], [1], [2], [3]], dependents=resting, holds=holds)) == [3]
    assert all(kept == [i for i in kept if i == 3 or i == 0 or i - 1 in kept] for kept in tried)


def test_numbers_close_up_where_something_was_taken_out_and_not_where_it_was_lost() -> None:
    events = history("L 90 c0 -> later\nL 90 c0 -> later\nL 90 c0 -> later\nb: L 90 c0 -> 0\nL 90 c0 -> 0\nreset")
    recorded = [event for event in events if event.sequence != 2]  # lost
    chosen = [index for index, event in enumerate(recorded) if event.sequence not in (1, 4)]
    numbered = Numbering(recorded).events(chosen)
    assert [event.sequence for event in numbered] == [0, 2, 3, 4, 5]
    assert [event.request_sequence for event in numbered if event.request == events[0].request] == [0, 2, 3]
    assert [recorded[index].span_id for index in chosen] == [event.span_id for event in numbered]
    whole = Numbering(recorded).events(range(len(recorded)))
    assert all(one is other for one, other in zip(whole, recorded, strict=True))
