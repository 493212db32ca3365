"""Requests: one filter, and three views of the selected requests: a table (or groups), lanes, and a heat map of a time
measure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import latency, requests
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.live.view import APPLIED
from kvtrail.dashboard.views import address, lanes, picker, tables
from kvtrail.dashboard.views.answers import EVERY_S, SLOW_S, read, tracer, unless_away
from kvtrail.dashboard.views.charts import chart_to_draw_on, is_dark
from kvtrail.dashboard.views.filters import choose, filter_bar, one_of, switch, written
from kvtrail.dashboard.views.links import request_query
from kvtrail.tracer.model.conditions import NAMES, BadCondition, parsed
from kvtrail.tracer.model.words import some

MOST = 200
TABLE = "requests_table"
LATEST = "latest"
VIEWS = {"table": "Table", "lanes": "Lanes", "heat": "Heat map"}
CONDITIONS = (
    "Conditions, joined by `and`: `duration > 2s and evicted >= 100`. Times have a unit (ms, s, min); a cause means its"
    f" tokens. Names: {', '.join(NAMES)}."
)


def filters() -> tuple[str, dict[str, str]]:
    """The search, and the filters in use; the page's URL holds them all."""
    choices = requests.choices(unless_away(lambda: tracer().get("fleet")["engines"], []))
    fixed = {
        "status": {name: palette.label(name) for name in requests.STATUS if name != "abandoned"},
        "verdict": {name: name for name in palette.VERDICT},
    }
    chosen = {}
    search = st.text_input(
        "Search",
        key="search",
        bind="query-params",
        type="search",
        live=True,
        placeholder="An id, a part of one, or a trace id",
        label_visibility="collapsed",
    )
    for name, texts in {**fixed, **choices}.items():
        chosen[name] = choose(name.capitalize(), list(texts), name=requests.ADDRESS.get(name, name), shown=texts)
    chosen["where"] = written("Conditions", name="where", example="duration > 2s and evicted >= 100", help=CONDITIONS)
    return (search or "").strip(), {name: value for name, value in chosen.items() if value}


def are_conditions(text: str) -> bool:
    """Whether these are conditions; shows the reason if not."""
    try:
        parsed(text)
    except BadCondition as error:
        st.error(plain(f"{str(error)[:1].upper()}{str(error)[1:]}."))
        return False
    return True


def table(search: str, order: str, chosen: dict[str, str]) -> None:
    """The requests, one per row."""
    # A search for an id covers all time.
    shown = picker.current()
    window = {} if search else {"since_ns": shown.since_ns, "before_ns": shown.until_ns}

    asked = requests.filters(chosen)
    found = read(
        lambda: tracer().get("requests", search=search, sort=order, limit=MOST, **asked, **window),
        key=f"requests {search!r} {order} {chosen} {shown.field()}",
    )
    if not found:
        st.info(requests.none_found(search, chosen))
        return
    count = f"The first {MOST} requests" if len(found) == MOST else some(len(found), "request")
    more = "; narrow down to see others" if len(found) == MOST else ""
    tables.table(
        requests.request_rows(found, now_ns=time.time_ns()),
        key=TABLE,
        links=[("request", request_query(request)) for request in found],
        ids=[(each["engine"], each["request"], each["started_ns"]) for each in found],
        note=f"{count}, {requests.ORDERS[order]}{', at any time' if search else ''}{more}. Click a row to open it.",
        most_rows=30,
    )


def grouped(by: str, of: str, search: str, chosen: dict[str, str]) -> None:
    """The requests in groups; a click on one lists its requests."""
    shown = picker.current()
    filters, ignored = requests.filters_of_groups(chosen, search)

    def ask() -> Any:
        measure = of or latency.usual(tracer().get("latency/measures", **filters, **shown.query))
        return tracer().get("latency/groups", by=by, of=measure, **filters, **shown.query)

    answer = read(ask, key=f"groups {by} {of} {filters} {shown.field()}")
    if not answer["groups"]:
        st.info(requests.none_found("", chosen))
        return
    say_ignored(ignored)
    others = requests.as_address({name: value for name, value in chosen.items() if name not in ignored})
    tables.table(
        requests.group_rows(answer),
        key="groups",
        links=[("requests", {**shown.address, **others, **each}) for each in requests.group_filters(answer, filters)],
        note=requests.group_note(answer, latency.MEASURES[answer["of"]]),
        most_rows=30,
    )


def heat_map(of: str, search: str, chosen: dict[str, str]) -> None:
    """Durations of requests: a heat map, and the percentiles of each phase. If no time measure is chosen, the default is
    shown. Drawing an area opens its requests as a table."""
    shown = picker.current()
    asked, ignored = requests.filters_of_groups(chosen, search)

    def ask() -> tuple[Row, Row]:
        measures = tracer().get("latency/measures", **asked, **shown.query)
        return tracer().get("latency", of=of or latency.usual(measures), **asked, **shown.query), measures

    over_time, measures = read(ask, key=f"latency {shown.field()} {of} {asked}")
    if not over_time["requests"]:
        st.info(requests.none_found("", chosen))
        return
    say_ignored(ignored)
    st.markdown(latency.summary(over_time))
    if over_time["whole"]["requests"]:
        st.caption("Requests by start time and duration; darker cells have more. Draw an area to list its requests.")

        def area(selection: Mapping[str, Any]) -> dict[str, str] | None:
            if (drawn := latency.drawn(selection, over_time)) is None:
                return None
            where = " and ".join(filter(None, (chosen.get("where"), drawn["where"])))
            return {**drawn, "where": where, "view": "", "of": "", "sort": "duration"}

        chart = latency.heat_map(over_time, dark=is_dark())
        chart_to_draw_on(chart, key=f"heat_map {over_time['of']}", selection=latency.AREA, area=area)
    st.subheader("Where the time went", anchor=False)
    if sentence := latency.tokens(measures):
        st.markdown(sentence)
    query = {**shown.address, **requests.as_address(chosen), "view": "heat"}
    found = latency.measures_shown(measures)
    tables.table(
        latency.measure_rows(found),
        key="measures",
        links=[("requests", {**query, "of": each["of"]}) for each in found],
        note="Each time over the requests that have it. Percentiles are within 4.5 %. Click a row to see it above.",
        appends=True,
    )


def say_ignored(filters: Sequence[str]) -> None:
    """Say which filters a view does not apply."""
    if filters:
        st.caption(f"This view does not apply the {' and the '.join(filters)}.")


view = address.query().get("view", "table")
picker.heading("Requests", timed=view != "lanes", beside=lambda: switch("View", VIEWS, name="view"))
with filter_bar():
    searched, in_use = filters()
    by = of = ""
    sort = LATEST
    if view == "table":
        by = choose("Grouping", list(requests.DIMENSIONS), name="by", shown=requests.CHOICES)
    if view == "heat" or by:
        of = one_of("Time", ["", *latency.MEASURES], name="of", default="", text=lambda each: latency.CHOICES[each])
    elif view == "table":
        orders = requests.ORDERS
        sort = one_of("Sort by", list(orders), name="sort", default=LATEST, text=orders.__getitem__)
if are_conditions(in_use.get("where", "")):
    if view == "lanes":
        say_ignored([name for name in in_use if name not in APPLIED])
        lanes.show({**in_use, **({"q": searched} if searched else {})})
    elif view == "heat":
        st.fragment(heat_map, run_every=picker.every_s(SLOW_S))(of, searched, in_use)
    elif by:
        st.fragment(grouped, run_every=picker.every_s(SLOW_S))(by, of, searched, in_use)
    else:
        st.fragment(table, run_every=EVERY_S if searched else picker.every_s(EVERY_S))(searched, sort, in_use)
