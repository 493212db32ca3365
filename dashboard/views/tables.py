"""Tables, with rows that may be links; and the columns that several tables share.

A browser shows an answer that may be seconds old. So rows keep their order while a page is open: the row that somebody reads
does not move.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import palette
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.link import Link, of_address
from kvtrail.dashboard.content.palette import Meaning
from kvtrail.dashboard.content.requests import STATUS
from kvtrail.dashboard.content.table_state import TableState, disambiguated
from kvtrail.dashboard.table import columns
from kvtrail.dashboard.table.columns import Column
from kvtrail.dashboard.table.component import OPEN, component
from kvtrail.dashboard.table.payload import payload
from kvtrail.dashboard.views.answers import question
from kvtrail.dashboard.views.links import remember_click
from kvtrail.tracer.model import words

_Shown = tuple[Row, Link]
_COUNTS = {
    "Findings": "finding", "Prompt": "prompt", "Loaded": "loaded tokens", "Loads": "loads", "Recomputed": "recomputed tokens",
    "Stored": "stored tokens", "Preemptions": "preemption",
}  # fmt: skip
"""Columns of counts, and their terms in the glossary."""
_ROW_PX, _HEAD_PX = 26, 38
"""Heights: of a row, and of the headings with the table's border (table.css)."""


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
    formats: Mapping[str, Column] | None = None,
) -> None:
    """A table as high as its rows, `most_rows` at most.

    Args:
        links: the page that a click on each row opens. Such a table keeps its order of rows: values change in place, and new
            rows wait for a click on `12 new`. Another question begins a new table.
        ids: each row's identity from answer to answer; its link if omitted.
        note: a line above the table.
        appends: new rows come last, so they need not wait.
        numbers: columns with thousands separators.
        widths: of columns, in pixels.
        formats: other columns.
    """
    widths = widths or {}
    looks = {
        **{name: Column(width=width) for name, width in widths.items()},
        **{name: columns.Numbers(width=widths.get(name)) for name in numbers},
        **(formats or {}),
    }
    with st.container(key=key, gap="small"):
        if links is None:
            if note:
                st.caption(note)
            _draw(rows, key=key, most_rows=most_rows, looks=looks)
            return
        names = disambiguated(ids if ids is not None else [(page, *sorted(query.items())) for page, query in links])
        answer = dict(zip(names, zip(rows, links, strict=True), strict=True))
        state = _state(key, answer, appends=appends)
        _heading(key, note, waiting=state.waiting)
        _draw(
            [row for row, _ in state.rows.values()],
            key=key,
            most_rows=most_rows,
            looks=looks,
            links=[each for _, each in state.rows.values()],
            number=state.number,
        )


def shown(key: str) -> Iterable[Hashable]:
    """The ids of the rows that the table `key` shows; none before it is drawn."""
    state: TableState[_Shown] | None = st.session_state.get(f"{key}_state")
    return () if state is None or _is_another(key, state) else state.rows.keys()


def _state(key: str, answer: Mapping[Hashable, _Shown], *, appends: bool) -> TableState[_Shown]:
    state: TableState[_Shown] | None = st.session_state.get(f"{key}_state")
    if state is None or _is_another(key, state):
        number = 0 if state is None else state.number + 1
        state = TableState(question(), number, dict(answer))
        st.session_state[f"{key}_state"] = state
    else:
        state.update(answer, appends=appends)
    return state


def _is_another(key: str, state: TableState[_Shown]) -> bool:
    """Whether the page now needs another table. Streamlit drops a table's state when its page is left."""
    return state.is_over or state.question != question() or _component_key(key) not in st.session_state


def _component_key(key: str) -> str:
    """The same for all tables that are shown in one place one after the other: the browser keeps one component, so that no
    click is lost between two of them."""
    return f"{key}_rows"


def _heading(key: str, note: str, *, waiting: int) -> None:
    """The note, and the button that shows the waiting rows. style.css fixes the line's height, so that nothing jumps."""
    if not (note or waiting):
        return

    def let_in() -> None:
        st.session_state[f"{key}_state"].is_over = True

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
    looks: Mapping[str, Column],
    links: Sequence[Link] = (),
    number: int = 0,
) -> None:
    component_key = _component_key(key)

    def open_link() -> None:
        remember_click(of_address(st.session_state[component_key][OPEN]))

    component()(
        key=component_key,
        data=payload(rows, looks, links=links, number=number, name=key.replace("_", " ")),
        height=_HEAD_PX + _ROW_PX * min(max(1, len(rows)), most_rows),
        on_open_change=open_link,
    )


def label_column(meanings: Mapping[str, Meaning], *, term: str) -> Column:
    """A column of coloured labels: each cell lists words of one group of the palette. It is as wide as they are: a label
    that is cut is another word."""
    return columns.Labels(meanings=meanings, help=TERMS[term])


def number_column(term: str, *, format: str = columns.LOCALIZED, width: int | None = None) -> Column:
    """A column of numbers, with thousands separators if nothing else is said."""
    return columns.Numbers(help=TERMS[term], format=format, width=width)


def moment_column(name: str, *, term: str) -> Column:
    """A column of moments, in UTC and to the minute."""
    return columns.Moments(label=f"{name} (UTC)", format="%m-%d %H:%M", width=120, help=TERMS[term])


def text_column(term: str, *, right: bool = False, width: int | None = None) -> Column:
    """A column of text."""
    return columns.Column(help=TERMS[term], right=right, width=width)


def request_labels() -> dict[str, Column]:
    """The columns of requests' statuses and verdicts."""
    return {"Status": label_column(STATUS, term="outcome"), "Verdict": label_column(palette.VERDICT, term="verdict")}


def rule_columns() -> dict[str, Any]:
    """The column options of `content.findings.rule_rows`."""
    return {
        "formats": {
            "Severity": label_column(palette.SEVERITY, term="severity"),
            "Impact": text_column("impact"),
            "Rule": Column(width=115),
            "Known": label_column(palette.KNOWN, term="known"),
            "Says": Column(width=300),
            "Findings": number_column("finding", width=75),
            "Requests": number_column("requests with it", width=80),
            **{name: moment_column(name, term="first seen") for name in ("First seen", "Last seen")},
        }
    }


def request_columns(rows: Sequence[Row], *, now_ns: int) -> dict[str, Column]:
    """The options of the columns of `content.requests.request_rows`; with dates if not all are today."""
    days = {datetime.fromtimestamp(at_ns / 1e9, UTC).date() for at_ns in (now_ns, *(r["started_ns"] for r in rows))}
    clock = "%Y-%m-%d %H:%M:%S.%f" if len(days) > 1 else "%H:%M:%S.%f"
    return {
        **{name: number_column(term) for name, term in _COUNTS.items()},
        **request_labels(),
        "Started": columns.Moments(label="Started (UTC)", format=clock),
        "Duration": number_column("duration", format="%.3f s"),
        "Waited": number_column("waited for KV", format="%.3f s"),
    }
