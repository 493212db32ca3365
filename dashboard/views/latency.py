"""How long requests take: percentiles over time, and a heat map on which an area selects requests."""

from __future__ import annotations

import time
from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import latency, requests, text, trends
from kvtrail.dashboard.content.legend import of_colours
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.views import address, conditions, picker, tables
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.context import is_dark
from kvtrail.dashboard.views.filters import choose, filter_bar, one_of
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.tables import request_columns
from kvtrail.dashboard.views.widgets import when_pressed
from kvtrail.tracer.model.words import duration, some

OF = "of"
"""The measure's name in the address."""
ENGINE = "on"
"""The engine's name in the address, as on the page of requests."""
DRAWN = "area_drawn"
"""The session's key for an area that was drawn and is not in the address yet."""
MOST = 50
"""The requests of an area that are listed here."""


@st.fragment(run_every=SLOW_S)
def page(of: str, chosen: dict[str, str]) -> None:
    """Draw the page, again at each refresh."""
    if (drawn := st.session_state.pop(DRAWN, None)) is not None:
        address.change({latency.AREA: drawn.text})
        st.rerun()
    shown, area = picker.current(), latency.area_of(address.query().get(latency.AREA, ""))
    asked = requests.filters(chosen)

    def ask() -> tuple[Row, Row, list[Row], list[Row]]:
        source = tracer()
        own = {name: value for name, value in chosen.items() if name == "engine"}  # markers are about engines
        over_time = source.latency(of=of, **asked, **shown.query)
        in_area = [] if area is None else source.requests(sort="duration", limit=MOST, **area.filters(of, asked))
        marked = source.markers(**own, **shown.query)
        return over_time, source.latency_measures(**asked, **shown.query), in_area, marked

    answer = read(ask, key=f"latency {shown.field()} {of} {chosen} {area}", again_s=picker.again_s(SLOW_S))
    if answer is None:
        return
    over_time, measures, in_area, marked = answer
    if not over_time["requests"]:
        st.info(latency.none_found(chosen))
        return
    st.markdown(latency.summary(over_time))
    if over_time["whole"]["requests"]:
        st.html(of_colours(latency.percentile_colours(dark=is_dark()), mark="solid"))
        picker.chart_over_time(latency.percentiles_over_time(over_time, dark=is_dark()), marked, key="percentiles")
        heat_map(over_time, area)
    if area is not None:
        requests_of(in_area, area, of, chosen)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader("Where the time went", anchor=False, width="content")
        link("compare_groups", "Compare groups", icon="compare_arrows", query={**shown.address, OF: of})
    tables.table(
        latency.measure_rows(measures),
        key="measures",
        links=[("latency", query({**chosen, OF: each}, shown)) for each in latency.measures_shown(measures)],
        note="Each time by itself, of the requests that have it. Percentiles are within 4.5 %. Click one to see it above.",
        appends=True,
        numbers=("Requests",),
        widths={"Time": 260},
    )


def query(chosen: Mapping[str, str], shown: TimeRange) -> dict[str, str]:
    """An address with these filters."""
    return {**shown.address, **{ENGINE if name == "engine" else name: value for name, value in chosen.items()}}


def heat_map(answer: Row, area: latency.Area | None) -> None:
    """The heat map. An area that is drawn on it goes into the address."""
    st.caption(
        f"When requests started, against their time of “{latency.MEASURES[answer['of']]}”. The stronger a"
        " cell's colour, the more requests. Draw an area to list them."
    )
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


def requests_of(found: list[Row], area: latency.Area, of: str, chosen: Mapping[str, str]) -> None:
    """The requests of an area, the longest first, and a link to all of them."""
    now_ns = time.time_ns()
    since, until = (text.clock(at_ns, now_ns=now_ns) for at_ns in (area.since_ns, area.until_ns))
    where = area.where(of, chosen.get("where", ""))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader("In this area", anchor=False, width="content")
        link("requests", "All of them", icon="arrow_forward", query=query({**chosen, "where": where}, area.range))
        others = chosen.get("where", "")
        sides = {"a": where, "b": area.quicker(of, others), OF: of}
        same = {
            f"{ENGINE if name == 'engine' else name}_{side}": chosen[name]
            for side in "ab"
            for name in ("engine", "status")
            if name in chosen
        }
        link(
            "compare_groups",
            "Compare with quicker ones",
            icon="compare_arrows",
            query={**area.range.address, **sides, **same},
        )
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


def filters() -> tuple[str, dict[str, str]]:
    """The measure, and the filters in use, as `content.requests.filters` takes them; the page's address holds them all."""
    try:
        choices = requests.choices(tracer().fleet()["engines"])
    except TracerAway:
        choices = {"engine": {}, "service": {}, "model": {}}  # the page below shows the error
    with filter_bar():
        of = one_of("Time", list(latency.MEASURES), name=OF, default=latency.FIRST, text=latency.MEASURES.__getitem__)
        chosen = {
            name: choose(name.capitalize(), list(texts), name=ENGINE if name == "engine" else name, shown=texts)
            for name, texts in {"status": requests.ENDS, **choices}.items()
        }
        chosen["where"] = conditions.field()
    return of, {name: value for name, value in chosen.items() if value}


picker.heading("Latency")
of_measure, in_use = filters()
if conditions.are_valid(in_use.get("where", "")):
    page(of_measure, in_use)
