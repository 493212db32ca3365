"""Tables: what the browser is given of rows, columns and links, and what a click gives back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.text import address, of_address
from kvtrail.dashboard.table.component import SHARE, Column, Ids, Labels, Numbers, payload
from kvtrail.tracer.model.words import NOTHING

AT = datetime(2026, 11, 26, 21, 5, 6, 78_900, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "value", "cell"),
    [
        (Column(), None, NOTHING),
        (Column(), "", NOTHING),
        (Column(), 1234, "1234"),
        (Column(), 0.5, "0.5"),
        (Column(), ["a", "b"], "a, b"),
        (Column(), AT, "11-26 21:05:06"),
        (Numbers(), 1234567, "1,234,567"),
        (Numbers(), 1234.5, "1,234.5"),
        (Numbers(), 0, "0"),
        (Numbers(), None, NOTHING),
        (Numbers(format="%.3f s"), 1.5, "1.500 s"),
        (Numbers(format=SHARE), 0.3804, "38.0 %"),
        (Ids(), "chat-1", "chat-1"),
        (Labels(meanings=palette.VERDICT), ["ok"], ["ok"]),
    ],
)
def test_a_cell_is_what_people_read(column: Column, value: Any, cell: Any) -> None:
    assert column.cell(value) == cell


def test_columns_say_how_they_look_and_numbers_are_at_the_right() -> None:
    rows: list[Row] = [
        {"Request": "r", "State": ["lost_contact"], "Loads": 2},
        {"Request": "s", "State": ["died"], "Loads": None, "Late": 1},
    ]
    looks = {
        "State": Labels(meanings=palette.STATE, help="what it does"),
        "Request": Column(label="Id", help="vLLM's"),
    }
    columns = payload(rows, looks)["columns"]
    assert [each["label"] for each in columns] == ["Id", "State", "Loads", "Late"]
    assert columns[0] == {"label": "Id", "help": "vLLM's", "kind": "text"}
    assert columns[1]["labels"]["lost_contact"] == [
        "contact lost",
        f"light-dark({palette.ORANGE.light}, {palette.ORANGE.dark})",
    ]
    assert [each.get("right", False) for each in columns] == [False, False, True, True]


def test_what_findings_did_and_what_is_known_of_them_is_never_cut() -> None:
    pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
    from kvtrail.dashboard.views.tables import COLUMNS

    row = {"Severity": ["crash"], "What they did": "81 did harm, 1 healed", "Known": ["partly known"]}
    headings = payload([row], COLUMNS)["columns"]
    assert [each["label"] for each in headings if "width" not in each] == [*row]


def test_rows_are_sorted_by_values_and_not_by_their_texts() -> None:
    rows: list[Row] = [
        {"n": 10, "at": AT, "mixed": 2},
        {"n": 9, "at": None, "mixed": "b"},
        {"n": None, "at": AT, "mixed": None},
    ]
    made = payload(rows, {"n": Numbers()})
    assert made["rows"][0][0] == "10"
    assert made["ranks"] == [[1, 0, 2], [0, 1, 0], [0, 1, 2]]


def test_a_click_gives_the_link_of_its_row() -> None:
    links = [("request", {"id": "a b&c=d", "engine": "e/1"}), ("replay", {"id": "ü", "step": ""})]
    given = payload([{"Request": "r"}, {"Request": "s"}], {}, links=links)["links"]
    assert given[0] == "request?id=a+b%26c%3Dd&engine=e%2F1"
    assert [of_address(each) for each in given] == links
    assert given == [*map(address, links)]
