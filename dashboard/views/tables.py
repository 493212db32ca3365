"""Tables, with rows that may be links; and how each column looks, on every page.

A browser shows an answer that may be seconds old. So rows keep their order while a page is open: the row that somebody reads
does not move.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import streamlit as st

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.requests import STATUS
from kvtrail.dashboard.content.text import Link, of_address
from kvtrail.dashboard.glossary import TERMS
from kvtrail.dashboard.table.columns import DURATION, PERCENT, Column, Ids, Labels, Moments, Numbers
from kvtrail.dashboard.table.component import OPEN, component, payload
from kvtrail.dashboard.table.state import TableState, disambiguated
from kvtrail.dashboard.views.answers import question
from kvtrail.dashboard.views.links import remember_click
from kvtrail.tracer.model import words

_Shown = tuple[Row, Link]
_ROW_PX, _HEAD_PX = 26, 38
"""Heights: of a row, and of the headings with the table's border (table.css)."""
_SECONDS, _SHARE = "%.3f s", "%.1f %%"
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
    "Started": Moments(label="Started (UTC)"),
    "Admitted": Moments(label="Admitted (UTC)"),
    "Latest": Moments(label="Latest (UTC)"),
    "First seen": Moments(label="First seen (UTC)", help=TERMS["first seen"]),
    "Last seen": Moments(label="Last seen (UTC)"),
    "Duration": Numbers(format=_SECONDS, help=TERMS["duration"]),
    "First token": Numbers(format=_SECONDS, help=TERMS["first token"]),
    "Waited": Numbers(format=_SECONDS, help=TERMS["waited for KV"]),
    "Saved": Numbers(format="%.2f s", help=TERMS["prefill saved"]),
    "Prefill": Numbers(format="%.2f s", help=TERMS["wasted prefill"]),
    "p50": Numbers(format=_SECONDS), "p90": Numbers(format=_SECONDS), "p99": Numbers(format=_SECONDS),
    "Hit rate": Numbers(format=_SHARE, help=TERMS["hit rate"]),
    "vLLM's own": Numbers(format=_SHARE, help=TERMS["vLLM's own hit rate"]),
    "Share": Numbers(format=_SHARE, help=TERMS["share of the waste"]),
    "Share of the change": Numbers(format=_SHARE, help=TERMS["share of the change"]),
    "Of its pool": Numbers(format=PERCENT),
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
    "To next": Numbers(format=DURATION, help=TERMS["to next"]),
    "Took": Column(help=TERMS["took"], right=True),
    "Says": Column(width=330),
    "Ended of": Column(width=290),
    "Why": Column(width=700),
}  # fmt: skip
"""How the values of each name look, on every page; those of other names are text."""


def table(
    rows: Sequence[Row],
    *,
    key: str,
    links: Sequence[Link] | None = None,
    ids: Sequence[Hashable] | None = None,
    note: str = "",
    appends: bool = False,
    most_rows: int = 12,
    looks: Mapping[str, Column] | None = None,
) -> None:
    """A table as high as its rows, `most_rows` at most.

    Args:
        links: the page that a click on each row opens. Such a table keeps its order of rows: values change in place, and new
            rows wait for a click on `12 new`. Another question begins a new table.
        ids: each row's identity from answer to answer; its link if omitted.
        note: a line above the table.
        appends: new rows come last, so they need not wait.
        looks: of columns that look otherwise than in `COLUMNS`.
    """
    looks = {**COLUMNS, **(looks or {})}
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
        shown = [*state.rows.values()]
        _draw(
            [row for row, _ in shown],
            key=key,
            most_rows=most_rows,
            looks=looks,
            links=[each for _, each in shown],
            number=state.number,
        )


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


def cards(shown: Iterable[Sequence[str]]) -> None:
    """A row of numbers, each with its name, a grey note, and its term in the glossary (style.css)."""
    with st.container(horizontal=True, gap="small", key="cards-small"):
        for name, value, note, term in shown:
            st.metric(
                name, value, note, delta_color="off", delta_arrow="off", border=True, help=TERMS.get(term) or None
            )
