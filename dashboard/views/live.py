"""What happens now: the requests of the last minutes as lanes over time, with their findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.live.address import as_query, of_query, typed_range
from kvtrail.dashboard.live.component import component
from kvtrail.dashboard.live.payload import busyness, found, payload, shows_nothing
from kvtrail.dashboard.live.view import (
    FILTERS,
    View,
    closer_question,
    fit_end_ms,
    ms_of,
    of_component,
    overview_question,
    question,
)
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.answers import EVERY_S, tracer
from kvtrail.dashboard.views.links import follow, request_query

KEY, FIRST, LEFT, ANSWERED, OPEN = "live", "live_first", "live_left", "live_answered", "live_open"
"""The session's keys for the component, the address's view, the view when the page was left, the last answer, and the
clicked request."""
FIT_END = "live_fit_end"
"""The same for the end of the range that was asked for, of a view that fits its contents."""
OVERVIEW, FOUND, MARKERS, COMMAND = "live_overview", "live_found", "live_markers", "live_command"
"""The same for the overview, a search's results at other times, markers, and the last view that the page commanded."""
SLOW_MS = 10_000
"""How often the overview, markers and a search of all time are queried again."""
MAX_FOUND = 6

Answer = TypeVar("Answer")


@st.fragment(run_every=EVERY_S)
def page() -> None:
    """Draw the page at each refresh, and at once if the component requests another view."""
    chosen = st.session_state.pop(OPEN, None)
    if chosen is not None:
        follow("request", request_query(chosen))
    view = current_view()
    answer, is_away = read(view)
    component()(
        key=KEY,
        data=payload(
            answer,
            view,
            is_away=is_away,
            overview=None if answer is None else overview(view),
            elsewhere=None if answer is None else elsewhere(view, answer),
            markers=[] if answer is None else markers(view, answer),
            command=st.session_state[COMMAND],
        ),
        on_view_change=write_address,
        on_open_change=remember_click,
        on_typed_change=read_typed,
    )


def current_view() -> View:
    """What the component shows, or the page has commanded; at first what the address names."""
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


def read(view: View) -> tuple[Row | None, bool]:
    """The tracer's answer, and whether the tracer is away; if so, the last answer, if any."""
    asked = question(view, end_ms=now_ms())
    last: tuple[dict[str, int | str], Row] | None = st.session_state.get(ANSWERED)
    if view.paused and last is not None and last[0] == asked:
        return last[1], False
    try:
        answer = tracer().lanes(**asked)
        if view.fit and shows_nothing(answer, view, now_ms=now_ms()) and not any(getattr(view, f) for f in FILTERS):
            answer = the_latest(view) or answer
        st.session_state[FIT_END] = fit_end_ms(answer)
        if (closer := closer_question(view, answer)) is not None:
            answer = tracer().lanes(**closer)
    except TracerAway:
        return (None if last is None else last[1]), True
    st.session_state[ANSWERED] = (asked, answer)
    return answer, False


def the_latest(view: View) -> Row | None:
    """The lanes around the latest request, if any."""
    requests = tracer().requests(limit=1)
    return tracer().lanes(**question(view, end_ms=ms_of(requests[0]["last_ns"]))) if requests else None


def overview(view: View) -> Row | None:
    """How many requests ran at a time around the view."""
    end_ms = st.session_state[FIT_END] if view.fit else now_ms()
    asked = overview_question(view, end_ms=-(-end_ms // SLOW_MS) * SLOW_MS)
    return cached(OVERVIEW, asked, lambda: busyness(tracer().lanes(**asked)))


def elsewhere(view: View, answer: Row) -> Row | None:
    """What the search finds at any time, if it finds nothing in the view."""
    if not view.q or not shows_nothing(answer, view, now_ms=now_ms()):
        return None
    asked = {"q": view.q, "at": now_ms() // SLOW_MS}
    return cached(FOUND, asked, lambda: found(view.q, tracer().requests(search=view.q, limit=MAX_FOUND)))


def markers(view: View, answer: Row) -> list[Row]:
    """What happened in the time of the answer that may explain what is seen, at the engines that are shown."""
    step_ns = SLOW_MS * 10**6
    asked = {
        "since_ns": answer["from_ns"] // step_ns * step_ns,
        "until_ns": -(-answer["to_ns"] // step_ns) * step_ns,
        "engine": view.engine,
    }
    return cached(MARKERS, asked, lambda: tracer().markers(**asked)) or []


def cached(key: str, asked: Mapping[str, Any], ask: Callable[[], Answer]) -> Answer | None:
    """An answer that is cached until `asked` changes, or while the tracer is away."""
    known: tuple[Mapping[str, Any], Answer] | None = st.session_state.get(key)
    if known is not None and known[0] == asked:
        return known[1]
    try:
        answer = ask()
    except TracerAway:
        return None if known is None else known[1]
    st.session_state[key] = (asked, answer)
    return answer


def write_address() -> None:
    """Write the view into the address, so that it can be shared; each is a step in the browser's history."""
    view = st.session_state[LEFT] = current_view()
    if as_query(view) != as_query(addressed()):
        address.replace(as_query(view))


def addressed() -> View:
    """The view that the address names."""
    return of_query(address.query(), folded=address.values("fold"), now_ms=now_ms())


def first_view() -> View:
    """The view that the address names; on the way back from another page, the view when the page was left.

    Streamlit's way back keeps the other page's query.
    """
    query = address.query()
    if query and "id" not in query:
        return addressed()
    view: View = st.session_state.get(LEFT, View())
    if query or view != View():
        address.replace(as_query(view))
    return view


def follow_address() -> None:
    """Show what the address names: at first, and after a step in the browser's history."""
    if reported_view() is None:
        st.session_state[FIRST] = first_view()
        st.session_state[COMMAND] = {"count": 0, "view": None}
    elif as_query(addressed()) != as_query(current_view()):
        command(addressed())


def remember_click() -> None:
    """A request was clicked: the next run opens its page."""
    st.session_state[OPEN] = st.session_state[KEY].get("open")


def read_typed() -> None:
    """A time was typed: the next run commands its view."""
    view = current_view()
    found = typed_range(str(st.session_state[KEY].get("typed") or ""), view, now_ms=now_ms())
    command(None if found is None else replace(view, fit=False, paused=False, paused_ms=None, **found))


def now_ms() -> float:
    """The present."""
    return time.time() * 1000


follow_address()
page()
