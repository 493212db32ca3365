"""What happens now: all requests of the last minutes as lanes over time, with their findings."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.live.component import component
from kvtrail.dashboard.live.view import View, as_query, of_component, of_query, payload, question
from kvtrail.dashboard.views.shared import EVERY_S, request_query, tracer

KEY, FIRST, LEFT, ANSWERED, OPEN = "live", "live_first", "live_left", "live_answered", "live_open"
"""The session's names for the component, the address's view, the view when the page was left, the last answer, and the
request that was clicked."""


@st.fragment(run_every=EVERY_S)
def page() -> None:
    """Draw the page, again at each refresh, and at once if the component wants to show something else."""
    chosen = st.session_state.pop(OPEN, None)
    if chosen is not None:
        st.switch_page("views/request.py", query_params=request_query(chosen))
    view = current_view()
    answer, is_away = read(view)
    component()(
        key=KEY,
        data=payload(answer, view, is_away=is_away),
        on_view_change=write_address,
        on_open_change=remember_click,
    )


def current_view() -> View:
    """What the component shows; at first what the address names."""
    said = st.session_state.get(KEY, {}).get("view")
    view: View = of_component(said) if said else st.session_state[FIRST]
    return view


def read(view: View) -> tuple[Row | None, bool]:
    """The tracer's answer, and whether the tracer is away: then it is the last answer, if there was one."""
    asked = question(view, now_ms=time.time() * 1000)
    last: tuple[dict[str, int | str], Row] | None = st.session_state.get(ANSWERED)
    if view.paused and last is not None and last[0] == asked:
        return last[1], False
    try:
        answer = tracer().lanes(**asked)
    except TracerAway:
        return (None if last is None else last[1]), True
    st.session_state[ANSWERED] = (asked, answer)
    return answer, False


def write_address() -> None:
    """Write the view into the address, so that it can be shared."""
    view = st.session_state[LEFT] = current_view()
    st.query_params.from_dict(as_query(view))


def first_view() -> View:
    """The view that the address names; or, on the way back from another page, the one that was left.

    Streamlit's way back brings the other page's address along.
    """
    query = st.query_params.to_dict()
    if query and "id" not in query:
        return of_query(query)
    view: View = st.session_state.get(LEFT, View())
    if query != as_query(view):
        st.query_params.from_dict(as_query(view))
    return view


def remember_click() -> None:
    """A request was clicked: the next run opens its page."""
    st.session_state[OPEN] = st.session_state[KEY].get("open")


st.header("Live", anchor=False)
st.session_state[FIRST] = first_view()
page()
