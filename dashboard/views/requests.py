"""Requests: one filter, and three views of what it selects: a table (or groups), lanes, and a heat map of a time."""

from __future__ import annotations

import time
from typing import NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import groups, latency, palette, refresh, requests
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.views import address, lanes, picker, tables
from kvtrail.dashboard.views.answers import EVERY_S, SLOW_S, read, tracer
from kvtrail.dashboard.views.filters import choose, filter_bar, one_of, say_ignored, switch, written
from kvtrail.dashboard.views.heat_map import heat_map
from kvtrail.dashboard.views.links import request_query
from kvtrail.dashboard.views.tables import number_column, request_columns
from kvtrail.tracer.model.conditions import NAMES, BadCondition, parsed
from kvtrail.tracer.model.words import some

MOST = 200
TABLE = "requests_table"
LATEST = "latest"
VIEWS = {"table": "Table", "lanes": "Lanes", "heat": "Heat map"}
IMMUTABLE = ("engine", "service", "model")
"""Filters by properties that a request never changes."""
CONDITIONS = (
    "Conditions, joined by `and`: `duration > 2s and evicted >= 100`. Times have a unit (ms, s, min); a cause means its"
    f" tokens. Names: {', '.join(NAMES)}."
)


def filters() -> tuple[str, dict[str, str]]:
    """The search, and the filters in use; the page's address holds them all."""
    try:
        choices = requests.choices(tracer().fleet()["engines"])
    except TracerAway:
        choices = {name: {} for name in IMMUTABLE}  # the page below shows the error
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


@st.fragment(run_every=EVERY_S)
def table(search: str, order: str, chosen: dict[str, str]) -> None:
    """Draw the table, again at each refresh."""
    # A search for an id covers all time.
    window = {} if search else {"since_ns": picker.current().since_ns, "before_ns": picker.current().until_ns}

    def ask() -> tuple[list[Row], list[Row]]:
        found = tracer().requests(search=search, sort=order, limit=MOST, **requests.filters(chosen), **window)
        return found, others_shown(found, search, chosen)

    def again_s(answer: tuple[list[Row], list[Row]]) -> float | None:
        now_ns = time.time_ns()
        of_range = EVERY_S if search else refresh.of_range(picker.current(), now_ns=now_ns)
        return refresh.soonest(of_range, refresh.of_requests(answer[0], now_ns=now_ns))

    answer = read(ask, key=f"requests {search!r} {order} {chosen} {picker.current().field()}", again_s=again_s)
    if answer is None:
        return
    found, others = answer
    if not found and not others:
        st.info(requests.none_found(search, chosen))
        return
    now_ns = time.time_ns()
    rows = [*found, *others]
    count = f"The first {MOST} requests" if len(found) == MOST else some(len(found), "request")
    more = "; narrow down to see others" if len(found) == MOST else ""
    tables.table(
        requests.request_rows(rows, now_ns=now_ns),
        key=TABLE,
        links=[("request", request_query(request)) for request in rows],
        ids=[*map(identity, rows)],
        note=f"{count}, {requests.ORDERS[order]}{', at any time' if search else ''}{more}. Click a row to open it.",
        most_rows=30,
        formats=request_columns(rows, now_ns=now_ns),
    )


@st.fragment(run_every=SLOW_S)
def grouped(by: str, of: str, search: str, chosen: dict[str, str]) -> None:
    """Draw the requests in groups, again at each refresh."""
    shown = picker.current()
    filters, ignored = requests.filters_of_groups(chosen, search)

    def ask() -> Row:
        source = tracer()
        measure = of or latency.usual(source.latency_measures(**filters, **shown.query))
        return source.latency_groups(by=by, of=measure, **filters, **shown.query)

    answer = read(ask, key=f"groups {by} {of} {filters} {shown.field()}", again_s=picker.again_s(SLOW_S))
    if answer is None:
        return
    if not answer["groups"]:
        st.info(requests.none_found("", chosen))
        return
    say_ignored(ignored)
    others = {requests.ADDRESS.get(name, name): value for name, value in chosen.items() if name not in ignored}
    seconds = number_column("duration", format="%.3f s")
    terms = zip(groups.SHARES, ("hit rate", "vLLM's own hit rate"), strict=True)
    shares = {name: number_column(term, format="%.1f %%") for name, term in terms}
    tables.table(
        groups.rows(answer),
        key="groups",
        links=[("requests", {**shown.address, **others, **each}) for each in groups.filters(answer, filters)],
        note=groups.note(answer),
        most_rows=30,
        numbers=("Requests", "Tokens"),
        widths={groups.DIMENSIONS[by]: 260},
        formats={**dict.fromkeys(groups.PERCENTILES, seconds), **shares},
    )


class Identity(NamedTuple):
    """A request's identity; an id alone may be used twice."""

    engine: str
    request: str
    started_ns: int


def identity(request: Row) -> Identity:
    """The identity of a row."""
    return Identity(*(request[name] for name in Identity._fields))


def others_shown(found: list[Row], search: str, chosen: dict[str, str]) -> list[Row]:
    """Requests that the table still shows although they are no longer in the answer."""
    missing = {each for each in tables.shown(TABLE) if isinstance(each, Identity)} - {*map(identity, found)}
    if not missing:
        return []
    immutable = {name: value for name, value in chosen.items() if name in IMMUTABLE}
    older = tracer().requests(
        search=search, before_ns=max(each.started_ns for each in missing) + 1, limit=MOST, **immutable
    )
    return [request for request in older if identity(request) in missing]


view = address.query().get("view", "table")
has_lanes = view == "lanes"
picker.heading("Requests", timed=not has_lanes, copied=not has_lanes, beside=lambda: switch("View", VIEWS, name="view"))
with filter_bar():
    searched, in_use = filters()
    by = of = ""
    sort = LATEST
    if view == "table":
        by = choose("Grouping", list(groups.DIMENSIONS), name="by", shown=groups.CHOICES)
    if view == "heat" or by:
        of = one_of("Time", ["", *latency.MEASURES], name="of", default="", text=lambda each: latency.CHOICES[each])
    elif view == "table":
        orders = requests.ORDERS
        sort = one_of("Sort by", list(orders), name="sort", default=LATEST, text=orders.__getitem__)
if are_conditions(in_use.get("where", "")):
    if view == "lanes":
        lanes.show(searched, in_use)
    elif view == "heat":
        heat_map(of, searched, in_use)
    elif by:
        grouped(by, of, searched, in_use)
    else:
        table(searched, sort, in_use)
