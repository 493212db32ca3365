"""The table's component, and its data: columns, rows as texts, and each row's link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.text import Link, address
from kvtrail.dashboard.scripts import FOLDER, joined
from kvtrail.dashboard.table.columns import Column, is_missing, text

OPEN = "open"
"""The trigger of a click, with the row's address."""


@cache
def component() -> ComponentRenderer:
    """The component, registered once; the page has its styles."""
    return st.components.v2.component(
        "kvtrail_table", js=joined([FOLDER / "ids.js", Path(__file__).with_name("table.js")]), isolate_styles=False
    )


def payload(
    rows: Sequence[Row], columns: Mapping[str, Column], *, links: Sequence[Link] = (), number: int = 0, name: str = ""
) -> dict[str, Any]:
    """The data of a table for the component.

    Args:
        columns: the appearance of values by name; values of other names are text.
        links: the link of each row; empty if rows are not links.
        number: the number of the table among those shown in its place: a new table begins at its top.
        name: a description of its rows for screen readers.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    looks = {name: columns.get(name, Column()) for name in names}
    return {
        "columns": [_heading(name, looks[name], [row.get(name) for row in rows]) for name in names],
        "rows": [[looks[name].cell(row.get(name)) for name in names] for row in rows],
        "ranks": [_ranks([row.get(name) for row in rows]) for name in names],
        "links": [*map(address, links)],
        "number": number,
        "name": name,
    }


def _heading(name: str, column: Column, values: Sequence[Any]) -> dict[str, Any]:
    numbers = [value for value in values if not is_missing(value)]
    is_of_numbers = bool(numbers) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in numbers
    )
    heading = {
        "label": column.label or name,
        "help": column.help,
        "width": column.width,
        "right": column.right or (column.kind == "text" and is_of_numbers),
        "kind": column.kind,
        "labels": {name: [palette.label(name), each.colour.css] for name, each in column.meanings.items()},
    }
    return {key: value for key, value in heading.items() if value}


def _ranks(values: Sequence[Any]) -> list[int]:
    """The rank of each value, numbers before texts; missing values come last, and equal values have the same rank."""
    places = {key: place for place, key in enumerate(sorted({_key(value) for value in values}))}
    return [places[_key(value)] for value in values]


def _key(value: Any) -> tuple[Any, ...]:
    if is_missing(value):
        return (2,)
    if isinstance(value, datetime):
        return 0, value.timestamp()
    return (0, value) if isinstance(value, int | float) else (1, text(value))
