"""A table stays as it is while somebody reads it."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.text import Link
from kvtrail.dashboard.views.tables import TableState, disambiguated


def answer(**rows: int) -> dict[Hashable, tuple[Row, Link]]:
    return {name: ({"n": value}, ("request", {})) for name, value in rows.items()}


def reading(**rows: int) -> TableState:
    return TableState("", 0, answer(**rows))


def values(state: TableState) -> list[tuple[Hashable, int]]:
    return [(name, row["n"]) for name, (row, _) in state.rows.items()]


def test_values_change_in_place_and_new_rows_wait() -> None:
    read = reading(b=1, a=2)
    read.update(answer(new=9, a=3, b=1))
    assert values(read) == [("b", 1), ("a", 3)]
    assert read.waiting == 1
    read.update(answer(newer=9, new=9, a=4))  # b has made room for them
    assert values(read) == [("b", 1), ("a", 4)]
    assert read.waiting == 2


def test_rows_that_come_last_need_not_wait() -> None:
    read = reading(b=1, a=2)
    read.update(answer(a=3, b=1, new=9), appends=True)
    assert list(read.rows) == ["b", "a", "new"]
    assert read.waiting == 0


def test_rows_of_one_name_get_numbers() -> None:
    assert disambiguated(["a", "b", "a", "a"]) == ["a", "b", ("a", 1), ("a", 2)]
