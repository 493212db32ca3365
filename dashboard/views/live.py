"""What happens now: all requests of the last minutes as lanes over time, and what was found where."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.live.address import View, as_query, of_component, of_query
from kvtrail.dashboard.live.component import component
from kvtrail.dashboard.live.payload import Question, payload, question
from kvtrail.dashboard.views.parts import EVERY_S, tracer

KEY, FIRST, LEFT, ANSWERED, OPEN = "live", "live_first", "live_left", "live_answered", "live_open"


@st.fragment(run_every=EVERY_S)
def page() -> None:
    """Draw the page, again and again; and at once when the component wants to see something else."""
    chosen = st.session_state.pop(OPEN, None)
    if chosen is not None:
        query = {"id": str(chosen["request"]), "engine": str(chosen["engine"])}
        st.switch_page("views/request.py", query_params=query)
    view = shown()
    answer, is_away = read(view)
    component()(
        key=KEY,
        data=payload(answer, view, is_away=is_away),
        on_view_change=write_address,
        on_open_change=remember,
    )


def shown() -> View:
    """What the component shows, or at first what the address names."""
    said = st.session_state.get(KEY, {}).get("view")
    view: View = of_component(said) if said else st.session_state[FIRST]
    return view


def read(view: View) -> tuple[Row | None, bool]:
    """The tracer's answer, and whether the tracer is away: then it is the last one that there was."""
    asked = question(view, now_ms=time.time() * 1000)
    last: tuple[Question, Row] | None = st.session_state.get(ANSWERED)
    if view.paused and last is not None and last[0] == asked:
        return last[1], False
    try:
        answer = tracer().lanes(**asked.parameters())
    except TracerAway:
        return (None if last is None else last[1]), True
    st.session_state[ANSWERED] = (asked, answer)
    return answer, False


def write_address() -> None:
    """The address names what is shown, so that it can be shared."""
    view = st.session_state[LEFT] = shown()
    st.query_params.from_dict(as_query(view))


def first() -> View:
    """The view that the address names. Whoever comes back from another page finds what was left: Streamlit's way back
    brings that page's address along."""
    query = st.query_params.to_dict()
    if query and "id" not in query:
        return of_query(query)
    view: View = st.session_state.get(LEFT, View())
    if query != as_query(view):
        st.query_params.from_dict(as_query(view))
    return view


def remember() -> None:
    """A request was clicked."""
    st.session_state[OPEN] = st.session_state[KEY].get("open")


st.header("Live", anchor=False)
st.session_state[FIRST] = first()
page()
