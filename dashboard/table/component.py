"""The table's component, the columns of tables, and its data: columns, rows as texts, and each row's link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.text import Link, address, milliseconds, percent
from kvtrail.dashboard.palette import Meaning
from kvtrail.dashboard.scripts import FOLDER, joined
from kvtrail.tracer.model.words import NOTHING

OPEN = "open"
"""The trigger of a click, with the row's address."""
LOCALIZED, SHARE, DURATION = "localized", "share", "duration"
"""Formats of numbers: with thousands separators; a share as a percentage; milliseconds with the unit that fits."""
CLOCK = "%m-%d %H:%M:%S"
"""The format of a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column.

    Attributes:
        label: the heading; the values' name if empty.
        help: the meaning of the values, shown at the heading.
        width: the maximum width of a cell in pixels; longer text is cut off.
        right: whether it is aligned to the right.
        kind: how the browser draws a cell: `text`, `labels` or `ids`.
        format: of numbers: one of those above, or one of printf's, such as `%.3f s`; empty for other values.
        meanings: of `labels`: the words of a group of the palette, each in its colour.
    """

    label: str = ""
    help: str = ""
    width: int | None = None
    right: bool = False
    kind: str = "text"
    format: str = ""
    meanings: Mapping[str, Meaning] = field(default_factory=dict)

    def cell(self, value: Any) -> Any:
        """A value as sent to the browser."""
        if self.kind == "labels":
            return value or []
        return _number(value, self.format) if self.format and value is not None else _text(value)


Numbers = partial(Column, format=LOCALIZED, right=True)
"""Numbers, aligned to the right."""
Labels = partial(Column, kind="labels")
"""Lists of words of one group of the palette, each in its colour."""
Ids = partial(Column, kind="ids")
"""Ids: long ones are cut in their middle, unless they would then be equal (browser/ids.js)."""


def _number(value: float, format: str) -> str:
    """A number in a format of a column."""
    if format == LOCALIZED:
        return f"{value:,}"
    if format == SHARE:
        return percent(value)
    return milliseconds(value) if format == DURATION else format % value


def _text(value: Any) -> str:
    """A value without a format."""
    match value:
        case None | "":
            return NOTHING
        case datetime():
            return value.astimezone(UTC).strftime(CLOCK)
        case list():
            return ", ".join(value) or NOTHING
        case _:
            return str(value)


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
    present = [value for value in values if value is not None]
    are_numbers = bool(present) and all(isinstance(value, int | float) for value in present)
    heading = {
        "label": column.label or name,
        "help": column.help,
        "width": column.width,
        "right": column.right or (column.kind == "text" and are_numbers),
        "kind": column.kind,
        "labels": {name: [palette.label(name), each.colour.css] for name, each in column.meanings.items()},
    }
    return {key: value for key, value in heading.items() if value}


def _ranks(values: Sequence[Any]) -> list[int]:
    """The rank of each value, numbers before texts; missing values come last, and equal values have the same rank."""
    places = {key: place for place, key in enumerate(sorted({_key(value) for value in values}))}
    return [places[_key(value)] for value in values]


def _key(value: Any) -> tuple[Any, ...]:
    match value:
        case None:
            return (2,)
        case datetime():
            return 0, value.timestamp()
        case int() | float():
            return 0, value
        case _:
            return 1, _text(value)
