"""Dictionaries of bounded size."""

from __future__ import annotations

from kvtrail.tracer.events.bounded import BoundedDict


def test_the_oldest_entry_makes_room_and_is_handed_over() -> None:
    dropped: list[tuple[str, int]] = []
    held: BoundedDict[str, int] = BoundedDict(2, on_drop=lambda key, value: dropped.append((key, value)))
    held["a"], held["b"], held["c"] = 1, 2, 3
    assert (dict(held), dropped) == ({"b": 2, "c": 3}, [("a", 1)])
    held["b"] = 4
    held.move_to_end("b")
    held["d"] = 5
    assert (dict(held), dropped) == ({"b": 4, "d": 5}, [("a", 1), ("c", 3)])


def test_no_way_in_passes_the_bound() -> None:
    held: BoundedDict[int, int] = BoundedDict(3)
    held.update({number: number for number in range(5)})
    held.setdefault(7, 7)
    held |= {8: 8, 9: 9}
    assert list(held) == [7, 8, 9]
