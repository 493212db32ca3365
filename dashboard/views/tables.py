"""Tables, with rows that may be links; and the appearance of each column, on every page.

A browser shows an answer that may be seconds old. So rows keep their order while a page is open: a row does not move while
a user reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.requests import STATUS
from kvtrail.dashboard.content.text import Link, of_address
from kvtrail.dashboard.glossary import TERMS
from kvtrail.dashboard.table.component import (
    DURATION,
    OPEN,
    SHARE,
    Column,
    Ids,
    Labels,
    Numbers,
    component,
    payload,
)
from kvtrail.dashboard.views.answers import question
from kvtrail.dashboard.views.links import remember_click
from kvtrail.tracer.model import words

_Shown = tuple[Row, Link]
_ROW_PX, _HEAD_PX = 26, 38
"""Heights: of a row, and of the headings with the table's border (table.css)."""
_SECONDS = "%.3f s"
COLUMNS: dict[str, Column] = {
    "Request": Ids(),
    "Engine": Ids(help=TERMS["engine"]),
    "Recorder": Ids(help=TERMS["recorder"]),
    "Prefills": Ids(), "Decodes": Ids(), "Keeps for": Ids(help=TERMS["kept for"]),
    "Status": Labels(meanings=STATUS, help=TERMS["outcome"]),
    "Verdict": Labels(meanings=palette.VERDICT, help=TERMS["verdict"]),
    "State": Labels(meanings=palette.STATE, help=TERMS["state"]),
    "Severity": Labels(meanings=palette.SEVERITY, help=TERMS["severity"]),
    "Impact": Labels(meanings=palette.DID, help=TERMS["impact"]),
    "Known": Labels(meanings=palette.KNOWN, help=TERMS["known"]),
    "What they did": Column(help=TERMS["impact"]),
    "Findings": Numbers(help=TERMS["finding"]),
    "Requests": Numbers(help=TERMS["requests with it"]),
    "Started": Column(label="Started (UTC)"),
    "Admitted": Column(label="Admitted (UTC)"),
    "Latest": Column(label="Latest (UTC)"),
    "First seen": Column(label="First seen (UTC)", help=TERMS["first seen"]),
    "Last seen": Column(label="Last seen (UTC)"),
    "Duration": Numbers(format=_SECONDS, help=TERMS["duration"]),
    "First token": Numbers(format=_SECONDS, help=TERMS["first token"]),
    "Waited": Numbers(format=_SECONDS, help=TERMS["waited for KV"]),
    "Saved": Numbers(format="%.2f s", help=TERMS["prefill saved"]),
    "Prefill": Numbers(format="%.2f s", help=TERMS["wasted prefill"]),
    "p50": Numbers(format=_SECONDS), "p90": Numbers(format=_SECONDS), "p99": Numbers(format=_SECONDS),
    "Hit rate": Numbers(format=SHARE, help=TERMS["hit rate"]),
    "vLLM's own": Numbers(format=SHARE, help=TERMS["vLLM's own hit rate"]),
    "Share": Numbers(format=SHARE, help=TERMS["share of the waste"]),
    "Before": Column(help=TERMS["before"], right=True), "After": Column(help=TERMS["after"], right=True),
    "Share of the change": Numbers(format=SHARE, help=TERMS["share of the change"]),
    "Of its pool": Numbers(format=SHARE),
    "Prompt": Numbers(help=TERMS["prompt"]),
    "Tokens": Numbers(),
    "Computed": Numbers(),
    "Loaded": Numbers(help=TERMS["loaded tokens"]),
    "Stored": Numbers(help=TERMS["stored tokens"]),
    "Matched": Numbers(help=TERMS["matched tokens"]),
    "In vLLM": Numbers(help=TERMS["computed tokens"]),
    "From its cache": Numbers(),
    "Recomputed": Numbers(help=TERMS["recomputed tokens"]),
    "Spared": Numbers(help=TERMS["spared tokens"]),
    "Preemptions": Numbers(help=TERMS["preemption"]),
    "Admissions": Numbers(help=TERMS["admission"]),
    "Lost from token": Numbers(help=TERMS["lost from token"]),
    "Open": Numbers(help=TERMS["open requests"]),
    "Open at its end": Numbers(help=TERMS["open at its end"]),
    "Hand-offs": Numbers(), "Failed": Numbers(), "Not loaded": Numbers(), "Declined": Numbers(), "Blocks": Numbers(),
    "Leases expired": Numbers(help=TERMS["lease expired"]),
    "Mean wait": Column(help=TERMS["mean wait"], right=True),
    "Oldest": Column(help=TERMS["oldest"], right=True),
    "Lag": Column(help=TERMS["lag"], right=True),
    "Dropped": Numbers(help=TERMS["dropped"]),
    "Gaps": Numbers(help=TERMS["gaps"]),
    "Since arrival": Numbers(format=DURATION),
    "Took": Column(help=TERMS["took"], right=True),
    "Says": Column(width=330),
    "A": Column(width=480), "B": Column(width=480),
    "Ended of": Column(width=290),
    "Why": Column(width=700),
}  # fmt: skip
"""The appearance of values by name, on every page; values of other names are text."""


@dataclass(slots=True)
class TableState:
    """A table on an open page.

    Attributes:
        question: the query behind its rows, such as filters and a sort order; another query begins another table.
        number: the number of tables before it. A browser that lags behind reports a click with the number of the table that
            it still shows.
        rows: the rows shown, in order, by identity. A row that is no longer in any answer keeps its last values.
        waiting: the number of new rows not shown yet.
        is_over: whether the user asked for the waiting rows.
    """

    question: str
    number: int
    rows: dict[Hashable, _Shown]
    waiting: int = 0
    is_over: bool = False

    def update(self, answer: Mapping[Hashable, _Shown], *, appends: bool = False) -> None:
        """Take over the values of a newer answer. New rows wait, or are added at the end if the table `appends` them."""
        self.rows = {name: answer.get(name, row) for name, row in self.rows.items()}
        new = {name: row for name, row in answer.items() if name not in self.rows}
        if appends:
            self.rows.update(new)
        else:
            self.waiting = len(new)


def disambiguated(names: Iterable[Hashable]) -> list[Hashable]:
    """The names; each repeat of a name gets a number."""
    seen: Counter[Hashable] = Counter()
    apart: list[Hashable] = []
    for name in names:
        apart.append((name, seen[name]) if seen[name] else name)
        seen[name] += 1
    return apart


def table(
    rows: Sequence[Row],
    *,
    key: str,
    links: Sequence[Link] | None = None,
    ids: Sequence[Hashable] | None = None,
    note: str = "",
    appends: bool = False,
    most_rows: int = 12,
) -> None:
    """A table as high as its rows, at most `most_rows`.

    Args:
        links: the page that a click on each row opens. Such a table keeps its order of rows: values change in place, and new
            rows wait for a click on `12 new`. Another question starts a new table.
        ids: each row's identity from answer to answer; its link if omitted.
        note: a line above the table.
        appends: new rows come last, so they need not wait.
    """
    with st.container(key=key, gap="small"):
        if links is None:
            if note:
                st.caption(note)
            _draw(rows, key=key, most_rows=most_rows)
            return
        names = disambiguated(ids if ids is not None else [(page, *sorted(query.items())) for page, query in links])
        answer = dict(zip(names, zip(rows, links, strict=True), strict=True))
        state = _state(key, answer, appends=appends)
        _heading(key, note, waiting=state.waiting)
        shown = [*state.rows.values()]
        _draw(
            [row for row, _ in shown],
            key=key,
            most_rows=most_rows,
            links=[each for _, each in shown],
            number=state.number,
        )


def _state(key: str, answer: Mapping[Hashable, _Shown], *, appends: bool) -> TableState:
    """The table's state, after this answer. Streamlit drops the state of a component when its page is left."""
    state: TableState | None = st.session_state.get(f"{key}_state")
    is_shown = _component_key(key) in st.session_state
    if state is not None and is_shown and not state.is_over and state.question == question():
        state.update(answer, appends=appends)
        return state
    number = 0 if state is None else state.number + 1
    state = st.session_state[f"{key}_state"] = TableState(question(), number, dict(answer))
    return state


def _component_key(key: str) -> str:
    """The key shared by all tables that are shown one after the other in one place: the browser keeps one component, so that
    no click is lost between two tables."""
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
    links: Sequence[Link] = (),
    number: int = 0,
) -> None:
    component_key = _component_key(key)

    def open_link() -> None:
        remember_click(of_address(st.session_state[component_key][OPEN]))

    component()(
        key=component_key,
        data=payload(rows, COLUMNS, links=links, number=number, name=key.replace("_", " ")),
        height=_HEAD_PX + _ROW_PX * min(max(1, len(rows)), most_rows),
        on_open_change=open_link,
    )


def cards(shown: Iterable[Sequence[str]]) -> None:
    """A row of numbers, each with its name, a grey note, and its term in the glossary (style.css)."""
    with st.container(horizontal=True, gap="small", key="cards-small"):
        for name, value, note, term in shown:
            st.metric(
                name, value, note, delta_color="off", delta_arrow="off", border=True, help=TERMS.get(term) or None
            )
