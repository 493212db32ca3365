"""A table stays as it is while somebody reads it."""

from __future__ import annotations

from collections.abc import Hashable

from kvtrail.dashboard.table.state import TableState, disambiguated


def reading(**rows: int) -> TableState[int]:
    held: dict[Hashable, int] = {name: value for name, value in rows.items()}  # noqa: C416 - of another type
    return TableState("", 0, held)


def test_values_change_in_place_and_new_rows_wait() -> None:
    read = reading(b=1, a=2)
    read.update({"new": 9, "a": 3, "b": 1})
    assert list(read.rows.items()) == [("b", 1), ("a", 3)]
    assert read.waiting == 1
    read.update({"newer": 9, "new": 9, "a": 4})  # b has made room for them
    assert list(read.rows.items()) == [("b", 1), ("a", 4)]
    assert read.waiting == 2


def test_rows_that_come_last_need_not_wait() -> None:
    read = reading(b=1, a=2)
    read.update({"a": 3, "b": 1, "new": 9}, appends=True)
    assert list(read.rows) == ["b", "a", "new"]
    assert read.waiting == 0


def test_rows_of_one_name_get_numbers() -> None:
    assert disambiguated(["a", "b", "a", "a"]) == ["a", "b", ("a", 1), ("a", 2)]
