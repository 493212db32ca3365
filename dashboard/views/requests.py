"""The list of requests, with search, filters and sort orders; a click on a row opens the request."""

from __future__ import annotations

import time
from typing import NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import groups, latency, palette, pasted, refresh, requests
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.views import conditions, picker, tables
from kvtrail.dashboard.views.answers import EVERY_S, SLOW_S, read, tracer
from kvtrail.dashboard.views.filters import choose, filter_bar, one_of
from kvtrail.dashboard.views.links import request_query
from kvtrail.dashboard.views.pasted import about_text
from kvtrail.dashboard.views.tables import number_column, request_columns
from kvtrail.tracer.model.words import some

MOST = 200
TABLE = "requests_table"
LATEST = "latest"
ADDRESS = {"engine": "on"}
"""Filters' names in the address. Streamlit writes the next page's query over this page's before it leaves, so that on the way
back a request's `engine` would filter the list."""
IMMUTABLE = ("engine", "service", "model")
"""Filters by properties that a request never changes."""
BY, OF = "by", "of"
"""The names in the address of what requests are grouped by, and of the time that the groups have percentiles of."""


@st.fragment(run_every=EVERY_S)
def page(search: str, order: str, chosen: dict[str, str]) -> None:
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
        no_match(search, chosen)
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
def grouped(by: str, of: str, chosen: dict[str, str]) -> None:
    """Draw the requests in groups, again at each refresh."""
    shown = picker.current()
    filters, ignored = requests.filters_of_groups(chosen)

    def ask() -> Row:
        return tracer().latency_groups(by=by, of=of, **filters, **shown.query)

    answer = read(ask, key=f"groups {by} {of} {filters} {shown.field()}")
    if answer is None:
        return
    if not answer["groups"]:
        no_match("", chosen)
        return
    if ignored:
        st.caption(f"Groups are of all requests, whatever their {' and '.join(ignored)}.")
    address = {ADDRESS.get(name, name): value for name, value in chosen.items() if name not in ignored}
    seconds = number_column("duration", format="%.3f s")
    terms = zip(groups.SHARES, ("hit rate", "vLLM's own hit rate"), strict=True)
    shares = {name: number_column(term, format="%.1f %%") for name, term in terms}
    tables.table(
        groups.rows(answer),
        key="groups",
        links=[("requests", {**shown.address, **address, **each}) for each in groups.filters(answer, filters)],
        note=groups.note(answer),
        most_rows=30,
        numbers=("Requests", "Tokens"),
        widths={groups.DIMENSIONS[by]: 260},
        formats={**dict.fromkeys(groups.PERCENTILES, seconds), **shares},
    )


def no_match(search: str, chosen: dict[str, str]) -> None:
    """A note that nothing matches, with a remedy."""
    if search:
        st.info(f"No request has {plain(search)} in its id, at any time.")
    elif chosen:
        st.info("No request matches in this range. Choose a longer one, or remove a filter.")
    else:
        st.info(
            "No request began in this range. Choose a longer one. If the tracer has no requests at all, the overview shows"
            " how to trace an engine."
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


def filters() -> tuple[str, str, str, str, dict[str, str]]:
    """The search, the sort order, what is grouped by and by which time (empty for a list), and the filters in use; the page's
    address holds them all."""
    try:
        choices = requests.choices(tracer().fleet()["engines"])
    except TracerAway:
        choices = {name: {} for name in IMMUTABLE}  # the page below shows the error
    fixed = {
        "status": {name: palette.label(name) for name in requests.STATUS if name != "abandoned"},
        "verdict": {name: name for name in palette.VERDICT},
    }
    with filter_bar():
        search = st.text_input(
            "Search",
            key="search",
            bind="query-params",
            type="search",
            live=True,
            placeholder="Part of an id, a trace id, or a line of a log",
            label_visibility="collapsed",
        )
        chosen = {}
        for name, texts in {**fixed, **choices}.items():
            chosen[name] = choose(name.capitalize(), list(texts), name=ADDRESS.get(name, name), shown=texts)
        chosen[conditions.NAME] = conditions.field()
        by = choose("Grouping", list(groups.DIMENSIONS), name=BY, shown=groups.CHOICES)
        texts, of, order = requests.ORDERS, "", LATEST
        if by:
            times = latency.MEASURES
            of = one_of("Time", list(times), name=OF, default=latency.FIRST, text=times.__getitem__)
        else:
            order = one_of("Sort by", list(texts), name="sort", default=LATEST, text=texts.__getitem__)
    return (search or "").strip(), order, by, of, {name: value for name, value in chosen.items() if value}


picker.heading("Requests")
searched, sort, grouping, measure, in_use = filters()
if pasted.is_text(searched):
    about_text(searched)
elif conditions.are_valid(in_use.get(conditions.NAME, "")):
    if grouping:
        grouped(grouping, measure, in_use)
    else:
        page(searched, sort, in_use)
