"""The time picker of all pages.

The range is in the page's URL, so the browser's back button undoes each choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import streamlit as st

from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.time_range import EXAMPLES, RANGES, TimeRange, of_query, typed
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.address import set_to, when_chosen
from kvtrail.dashboard.views.answers import unless_over

CHOICE, FIELD, REJECTED = "time_choice", "time_field", "time_rejected"
"""The session's keys for the quick choice, the field, and typed text that could not be parsed."""


def heading(title: str, *, timed: bool = True, beside: Callable[[], object] | None = None) -> None:
    """The page's title, with the picker if the page shows a time range. `beside` draws what is next to the title."""
    shown, rejected = current(), st.session_state.pop(REJECTED, {})
    with st.container(key="heading", horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.header(title, width="content", anchor=False)
        if beside is not None:
            beside()
        if timed:
            with st.container(key="picker", horizontal=True, vertical_alignment="center", gap="small", width="content"):
                _quick_choices(shown)
                _field(shown, rejected)
    if rejected:
        st.error(text.plain(rejected["why"]))


def current() -> TimeRange:
    """The range in the URL."""
    return of_query(address.query(), now_ns=time.time_ns())


def show(chosen: TimeRange) -> None:
    """Make this the page's range."""
    address.change(chosen.address)


def every_s(seconds: float) -> float | None:
    """The refresh interval of a page about the range; None if the range ended long ago."""
    shown = current()
    return unless_over(seconds, ended_ns=None if shown.relative else shown.until_ns)


def _quick_choices(shown: TimeRange) -> None:
    set_to(CHOICE, shown.choice)

    def choose() -> None:
        if chosen := st.session_state[CHOICE]:
            show(of_query({"from": f"now-{RANGES[chosen]}"}, now_ns=time.time_ns()))

    st.segmented_control(
        "Last", [*RANGES], key=CHOICE, on_change=when_chosen(CHOICE, choose), label_visibility="collapsed"
    )


def _field(shown: TimeRange, rejected: Mapping[str, str]) -> None:
    set_to(FIELD, rejected.get("typed", shown.field()))

    def read() -> None:
        wanted = st.session_state[FIELD]
        try:
            show(typed(wanted, now_ns=time.time_ns(), shown=shown))
        except ValueError as error:
            st.session_state[REJECTED] = {"typed": wanted, "why": str(error)}

    st.text_input(
        "Time range (UTC)",
        key=FIELD,
        on_change=when_chosen(FIELD, read),
        icon=":material/schedule:",
        help=f"UTC. Type {EXAMPLES}. Or draw a range on a chart. The browser's back button undoes it.",
        label_visibility="collapsed",
        width=390,
    )
