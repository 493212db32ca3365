"""Tables, with rows that may be links; and the columns that several tables share.

A browser shows an answer that may be seconds old, and reports a click by row number. So rows keep their order while a page is
open: a number always means the same row, and the row that somebody reads does not move.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import palette
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.palette import Meaning
from kvtrail.dashboard.content.requests import STATUS
from kvtrail.dashboard.content.table_state import TableState, disambiguated
from kvtrail.dashboard.views.answers import question
from kvtrail.dashboard.views.links import Link, remember_click
from kvtrail.tracer.model import words

_Shown = tuple[Row, Link]
_COUNTS = {
    "Findings": "finding", "Prompt": "prompt", "Loaded": "loaded tokens", "Loads": "loads", "Recomputed": "recomputed tokens",
    "Stored": "stored tokens", "Preemptions": "preemption",
}  # fmt: skip
"""Columns of counts, and their terms in the glossary."""
_ROW_PX, _HEAD_PX = 26, 38
"""Heights: of a row, as low as a label allows; of the headings, with the table's border."""


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
        links: the page that a click on each row opens. Such a table keeps its order of rows: values change in place, and new
            rows wait for a click on `12 new`. Another question begins a new table.
        ids: each row's identity from answer to answer; its link if omitted.
        note: a line above the table.
        appends: new rows come last, so they need not wait.
        numbers: columns with thousands separators.
        widths: of columns, in pixels.
        formats: other columns, as Streamlit configures them.
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
        names = disambiguated(ids if ids is not None else [(page, *sorted(query.items())) for page, query in links])
        answer = dict(zip(names, zip(rows, links, strict=True), strict=True))
        state = _state(key, answer, appends=appends)
        _heading(key, note, waiting=state.waiting)
        shown = [row for row, _ in state.rows.values()]
        table_key = _table_key(key, state.number)
        _draw(shown, key=table_key, most_rows=most_rows, columns=columns, on_select=_opener(table_key, state))


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
    return state.is_over or state.question != question() or _table_key(key, state.number) not in st.session_state


def _table_key(key: str, number: int) -> str:
    return f"{key}_{number}"


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


def _opener(table_key: str, state: TableState[_Shown]) -> Callable[[], None]:
    """The callback of a click on the table. `read` opens the row's page: a callback may not, since no page runs then."""

    def click() -> None:
        cells = st.session_state[table_key]["selection"]["cells"]
        links = [link for _, link in state.rows.values()]
        if cells and cells[0][0] < len(links):
            remember_click(links[cells[0][0]])

    return click


def label_column(meanings: Mapping[str, Meaning], *, term: str, width: int | None = None) -> Any:
    """A column of coloured labels: each cell lists words of one group of the palette."""
    return st.column_config.MultiselectColumn(
        options=[*meanings],
        color=[each.colour.badge for each in meanings.values()],
        format_func=palette.label,
        help=TERMS[term],
        width=width,
    )


def number_column(term: str, **options: Any) -> Any:
    """A column of numbers with thousands separators."""
    return st.column_config.NumberColumn(**{"format": "localized", "help": TERMS[term], **options})


def moment_column(name: str, *, term: str) -> Any:
    """A column of moments, in UTC and to the minute."""
    return st.column_config.DatetimeColumn(
        f"{name} (UTC)", format="MM-DD HH:mm", timezone="UTC", width=120, help=TERMS[term]
    )


def text_column(term: str, **options: Any) -> Any:
    """A column of text."""
    return st.column_config.TextColumn(help=TERMS[term], **options)


def request_labels() -> dict[str, Any]:
    """The columns of requests' statuses and verdicts."""
    return {"Status": label_column(STATUS, term="outcome"), "Verdict": label_column(palette.VERDICT, term="verdict")}


def rule_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """The column options of `content.findings.rule_rows`."""
    most = max((max(row["Trend"], default=0) for row in rows), default=0)
    return {
        "formats": {
            "Could": label_column(palette.SEVERITY, term="could", width=105),
            "Did": text_column("did", width=125),
            "Rule": st.column_config.TextColumn(width=115),
            "Known": label_column(palette.KNOWN, term="known", width=120),
            "Says": st.column_config.TextColumn(width=330),
            "Findings": number_column("finding", width=75),
            "Requests": number_column("requests with it", width=80),
            # One scale for all rows, so that they can be compared.
            "Trend": st.column_config.BarChartColumn(help=TERMS["trend"], width=140, y_min=0, y_max=max(1, most)),
            **{name: moment_column(name, term="first seen") for name in ("First seen", "Last seen")},
        }
    }


def request_columns(rows: Sequence[Row], *, now_ns: int) -> dict[str, Any]:
    """The options of the columns of `content.requests.request_rows`; with dates if not all are today."""
    days = {datetime.fromtimestamp(at_ns / 1e9, UTC).date() for at_ns in (now_ns, *(r["started_ns"] for r in rows))}
    clock = "YYYY-MM-DD HH:mm:ss.SSS" if len(days) > 1 else "HH:mm:ss.SSS"
    return {
        **{name: number_column(term) for name, term in _COUNTS.items()},
        **request_labels(),
        "Request": st.column_config.TextColumn(pinned=True),
        "Started": st.column_config.DatetimeColumn("Started (UTC)", format=clock, timezone="UTC"),
        "Duration": number_column("duration", format="%.3f s"),
        "Waited": number_column("waited for KV", format="%.3f s"),
    }
