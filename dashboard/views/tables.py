"""Tables, also those whose rows are links.

A browser shows an answer that may be some seconds old, and reports a click by the row's number. So the order of rows is kept
while a page is open: a number always means the same row, and nobody who reads is moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.reading import Reading, told_apart
from kvtrail.dashboard.views.answers import question
from kvtrail.dashboard.views.follow import follow
from kvtrail.tracer.model import words

Link = tuple[str, Mapping[str, str]]
"""A page, and the query of its address."""
_Shown = tuple[Row, Link]
_ROW_PX, _HEAD_PX = 26, 38
"""Heights: of a row, as low as a label in it allows; of the line of headings, with the table's border."""


def table(
    rows: Sequence[Row],
    *,
    key: str,
    links: Sequence[Link] | None = None,
    ids: Sequence[Hashable] | None = None,
    note: str = "",
    appends: bool = False,
    most_rows: int = 12,
    numbers: Iterable[str] = (),
    widths: Mapping[str, int] | None = None,
    formats: Mapping[str, Any] | None = None,
) -> None:
    """A table as high as its rows, `most_rows` at most.

    Args:
        links: what a click on each row opens. Such a table keeps the order of its rows: values change in place, and new rows
            wait for a click on `12 new`. The answer to another question begins a new table.
        ids: what each row is known by from answer to answer; its link, where that is enough.
        note: a line above the table.
        appends: new rows come last, and therefore need not wait.
        widths: of columns, in pixels; `numbers` have thousands separators, and others Streamlit's own `formats`.
    """
    widths = widths or {}
    columns = {
        **{name: st.column_config.Column(width=width) for name, width in widths.items()},
        **{name: st.column_config.NumberColumn(width=widths.get(name), format="localized") for name in numbers},
        **(formats or {}),
    }
    with st.container(key=key, gap="small"):
        if links is None:
            if note:
                st.caption(note)
            _draw(rows, key=f"{key}_rows", most_rows=most_rows, columns=columns)
            return
        _follow_click(key)
        names = told_apart(ids if ids is not None else [(page, *sorted(query.items())) for page, query in links])
        answer = dict(zip(names, zip(rows, links, strict=True), strict=True))
        reading = _reading(key, answer, appends=appends)
        _heading(key, note, waiting=reading.waiting)
        shown = [row for row, _ in reading.rows.values()]
        table_key = _table_key(key, reading.number)
        _draw(shown, key=table_key, most_rows=most_rows, columns=columns, on_select=_opener(key, table_key, reading))


def shown(key: str) -> Iterable[Hashable]:
    """What the rows are known by that the table `key` shows; nothing before it is drawn."""
    reading: Reading[_Shown] | None = st.session_state.get(f"{key}_reading")
    return () if reading is None or _is_another(key, reading) else reading.rows.keys()


def _reading(key: str, answer: Mapping[Hashable, _Shown], *, appends: bool) -> Reading[_Shown]:
    reading: Reading[_Shown] | None = st.session_state.get(f"{key}_reading")
    if reading is None or _is_another(key, reading):
        number = 0 if reading is None else reading.number + 1
        reading = Reading(question(), number, dict(answer))
        st.session_state[f"{key}_reading"] = reading
    else:
        reading.renew(answer, appends=appends)
    return reading


def _is_another(key: str, reading: Reading[_Shown]) -> bool:
    """Whether what was read is not what is wanted now. Streamlit forgets a table's state when its page is left."""
    return reading.is_over or reading.question != question() or _table_key(key, reading.number) not in st.session_state


def _table_key(key: str, number: int) -> str:
    return f"{key}_{number}"


def _heading(key: str, note: str, *, waiting: int) -> None:
    """The note, and the button that lets in what waits. style.css gives the line its height, so that nothing jumps."""
    if not (note or waiting):
        return

    def let_in() -> None:
        st.session_state[f"{key}_reading"].is_over = True

    with st.container(key=f"above_{key}", horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(note, width="content")
        if waiting:
            label = f"{words.count(waiting)} new"
            st.button(label, key=f"{key}_new", icon=":material/arrow_upward:", type="tertiary", on_click=let_in)


def _draw(
    rows: Sequence[Row],
    *,
    key: str,
    most_rows: int,
    columns: Mapping[str, Any],
    on_select: Callable[[], None] | None = None,
) -> None:
    selection: dict[str, Any] = {}
    if on_select is not None:
        selection = {"on_select": on_select, "selection_mode": "single-cell"}
    st.dataframe(
        rows,
        key=key,
        hide_index=True,
        height=_HEAD_PX + _ROW_PX * min(len(rows), most_rows),
        row_height=_ROW_PX,
        column_config=columns,
        placeholder=words.NOTHING,
        **selection,
    )


def _opener(key: str, table_key: str, reading: Reading[_Shown]) -> Callable[[], None]:
    """What is called with a click on the table."""

    def click() -> None:
        cells = st.session_state[table_key]["selection"]["cells"]
        links = [link for _, link in reading.rows.values()]
        if cells and cells[0][0] < len(links):
            st.session_state[f"{key}_clicked"] = links[cells[0][0]]

    return click


def _follow_click(key: str) -> None:
    """Open what was clicked: a callback may not, as the page is not running then."""
    clicked: Link | None = st.session_state.pop(f"{key}_clicked", None)
    if clicked is not None:
        page, query = clicked
        follow(page, query)
