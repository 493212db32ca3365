"""The live view: requests as lanes over time, with their findings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.live.component import component, payload
from kvtrail.dashboard.live.view import (
    NAMES,
    View,
    as_query,
    closer_question,
    ms_of,
    of_component,
    of_query,
    question,
    typed_view,
)
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.answers import EVERY_S, remembered, tracer
from kvtrail.dashboard.views.links import follow, request_query

KEY, FIRST, ANSWERED, OPEN = "live", "live_first", "live_answered", "live_open"
"""The session's keys for the component, the view in the URL, the last answer, and the clicked request."""
MARKERS, COMMAND = "live_markers", "live_command"
"""The same for markers, and the last view that the page commanded."""
SLOW_MS = 10_000
"""How often markers are queried again."""


def show(chosen: dict[str, str]) -> None:
    """The requests that the page's filter selects, as lanes."""
    follow_address()
    page(chosen)


@st.fragment(run_every=EVERY_S)
def page(chosen: dict[str, str]) -> None:
    """Draw the lanes at each refresh, and at once if the component requests another view."""
    opened = st.session_state.pop(OPEN, None)
    if opened is not None:
        follow("request", request_query(opened))
    view = current_view()
    answer, is_away = read(view, chosen)
    component()(
        key=KEY,
        data=payload(
            answer,
            view,
            command=st.session_state[COMMAND],
            is_away=is_away,
            is_filtered=bool(chosen),
            markers=[] if answer is None else markers(answer, chosen),
        ),
        on_view_change=write_address,
        on_open_change=remember_click,
        on_typed_change=read_typed,
    )


def current_view() -> View:
    """The view that the component shows, or that the page has commanded; at first the view in the URL."""
    reported, command = reported_view(), st.session_state[COMMAND]
    view: View = of_component(reported) if reported else st.session_state[FIRST]
    # The component reports the last command that it obeyed.
    has_obeyed = reported is not None and reported.get("command") == command["count"]
    return view if command["view"] is None or has_obeyed else command["view"]


def reported_view() -> Mapping[str, Any] | None:
    """The view that the component reported, if any."""
    reported: Mapping[str, Any] | None = st.session_state.get(KEY, {}).get("view")
    return reported


def command(view: View | None) -> None:
    """Command the component to show a view; None if the typed time cannot be parsed."""
    st.session_state[COMMAND] = {"count": st.session_state[COMMAND]["count"] + 1, "view": view}


def read(view: View, chosen: dict[str, str]) -> tuple[Row | None, bool]:
    """The tracer's answer, and whether the tracer is away; if so, the last answer, if any."""
    try:
        answer = tracer().get("lanes", **question(view, chosen, end_ms=now_ms()))
        if view.fit and not answer["requests"]["begin_us"] and not chosen:
            answer = the_latest(view) or answer
        if (closer := closer_question(view, chosen, answer)) is not None:
            answer = tracer().get("lanes", **closer)
    except TracerAway:
        return st.session_state.get(ANSWERED), True
    st.session_state[ANSWERED] = answer
    return answer, False


def the_latest(view: View) -> Row | None:
    """The lanes around the latest request, if any."""
    requests = tracer().get("requests", limit=1)
    return tracer().get("lanes", **question(view, {}, end_ms=ms_of(requests[0]["last_ns"]))) if requests else None


def markers(answer: Row, chosen: dict[str, str]) -> list[Row]:
    """The markers of the shown engines in the time range of the answer."""
    step_ns = SLOW_MS * 10**6
    asked = {
        "since_ns": answer["from_ns"] // step_ns * step_ns,
        "until_ns": -(-answer["to_ns"] // step_ns) * step_ns,
        "engine": chosen.get("engine", ""),
    }
    return remembered(MARKERS, asked, lambda: tracer().get("markers", **asked)) or []


def write_address() -> None:
    """Write the view into the URL, so that it can be shared; each view is a step in the browser's history."""
    written = as_query(current_view())
    if written != as_query(addressed()):
        address.replace({**{name: found for name, found in address.query().items() if name not in NAMES}, **written})


def addressed() -> View:
    """The view in the URL."""
    return of_query(address.query(), folded=address.values("fold"), now_ms=now_ms())


def follow_address() -> None:
    """Show the view in the URL: at first, and after a step in the browser's history."""
    if reported_view() is None:
        st.session_state[FIRST] = addressed()
        st.session_state[COMMAND] = {"count": 0, "view": None}
    elif as_query(addressed()) != as_query(current_view()):
        command(addressed())


def remember_click() -> None:
    """A request was clicked: the next run opens its page."""
    st.session_state[OPEN] = st.session_state[KEY].get("open")


def read_typed() -> None:
    """A time was typed: the next run commands its view."""
    command(typed_view(str(st.session_state[KEY].get("typed") or ""), current_view(), now_ms=now_ms()))


def now_ms() -> float:
    """The present."""
    return time.time() * 1000
