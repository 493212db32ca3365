"""How long requests take: a heat map on which an area selects requests, and percentiles of each phase."""

from __future__ import annotations

import time
from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import latency, requests, text, trends
from kvtrail.dashboard.content.legend import of_colours
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.views import address, picker, tables
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.context import is_dark
from kvtrail.dashboard.views.filters import say_ignored
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.tables import request_columns
from kvtrail.dashboard.views.widgets import when_pressed
from kvtrail.tracer.model.words import duration, some

DRAWN = "area_drawn"
"""The session's key for an area that was drawn and is not in the address yet."""
MOST = 50
"""The requests of an area that are listed here."""


@st.fragment(run_every=SLOW_S)
def heat_map(of: str, search: str, chosen: dict[str, str]) -> None:
    """Draw the view, again at each refresh. If no time is chosen, it shows the usual one."""
    if (drawn := st.session_state.pop(DRAWN, None)) is not None:
        address.change({latency.AREA: drawn.text})
        st.rerun()
    shown, area = picker.current(), latency.area_of(address.query().get(latency.AREA, ""))
    asked, ignored = requests.filters_of_groups(chosen, search)

    def ask() -> tuple[Row, Row, list[Row]]:
        source = tracer()
        measures = source.latency_measures(**asked, **shown.query)
        measure = of or latency.usual(measures)
        over_time = source.latency(of=measure, **asked, **shown.query)
        in_area = [] if area is None else source.requests(sort="duration", limit=MOST, **area.filters(measure, asked))
        return over_time, measures, in_area

    answer = read(ask, key=f"latency {shown.field()} {of} {asked} {area}", again_s=picker.again_s(SLOW_S))
    if answer is None:
        return
    over_time, measures, in_area = answer
    if not over_time["requests"]:
        st.info(requests.none_found("", chosen))
        return
    say_ignored(ignored)
    st.markdown(latency.summary(over_time))
    if over_time["whole"]["requests"]:
        _map(over_time, area)
    if area is not None:
        _requests_of(in_area, area, over_time["of"], chosen)
    st.subheader("Where the time went", anchor=False)
    if sentence := latency.tokens(measures):
        st.markdown(sentence)
    tables.table(
        latency.measure_rows(measures),
        key="measures",
        links=[
            ("requests", {**_query(chosen, shown), "view": "heat", "of": each})
            for each in latency.measures_shown(measures)
        ],
        note="Each time by itself, of the requests that have it. Percentiles are within 4.5 %. Click one to see it above.",
        appends=True,
        numbers=("Requests",),
        widths={"Time": 260},
    )


def _query(chosen: Mapping[str, str], shown: TimeRange) -> dict[str, str]:
    """An address with these filters."""
    return {**shown.address, **{requests.ADDRESS.get(name, name): value for name, value in chosen.items()}}


def _map(answer: Row, area: latency.Area | None) -> None:
    """The heat map. An area that is drawn on it goes into the address."""
    st.caption(f"When requests started, against their “{latency.MEASURES[answer['of']]}”. Draw an area to list them.")
    st.html(of_colours(latency.scale(answer, dark=is_dark())))
    # What was drawn ends once it is shown: the next area has another chart.
    key = f"heat_map {answer['of']} {picker.current().field()} {area}"

    def draw() -> None:
        selection = st.session_state[key]["selection"].get(latency.AREA, {})
        if (found := latency.drawn(selection, answer)) is not None:
            st.session_state[DRAWN] = found

    spec, rows = trends.spec_and_rows(latency.heat_map(answer, area, dark=is_dark()))
    st.vega_lite_chart(
        rows, trends.readable(spec, dark=is_dark()), key=key, on_select=draw, selection_mode=latency.AREA
    )


def _requests_of(found: list[Row], area: latency.Area, of: str, chosen: Mapping[str, str]) -> None:
    """The requests of an area, the longest first, and a link to all of them."""
    now_ns = time.time_ns()
    since, until = (text.clock(at_ns, now_ns=now_ns) for at_ns in (area.since_ns, area.until_ns))
    where = area.where(of, chosen.get("where", ""))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader("In this area", anchor=False, width="content")
        link("requests", "All of them", icon="arrow_forward", query=_query({**chosen, "where": where}, area.range))
        clear = when_pressed(lambda: address.change({latency.AREA: ""}))
        st.button("Clear", icon=":material/close:", type="tertiary", on_click=clear)
    longest = "The longest " if len(found) == MOST else ""
    tables.table(
        requests.request_rows(found, now_ns=now_ns),
        key="area",
        links=[("request", request_query(each)) for each in found],
        note=f"{longest}{some(len(found), 'request')} that started from {since} to {until} UTC, {latency.MEASURES[of]}:"
        f" {duration(area.low_ns)} to {duration(area.high_ns)}. Click a row to open it.",
        most_rows=15,
        formats=request_columns(found, now_ns=now_ns),
    )
