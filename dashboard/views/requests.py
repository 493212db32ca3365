"""The list of requests, with search, filters and sort orders; a click on a row opens the request."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import palette, pasted, requests
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.views import picker, tables
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer
from kvtrail.dashboard.views.filters import choose, filter_bar, one_of
from kvtrail.dashboard.views.links import request_query
from kvtrail.dashboard.views.pasted import about_text
from kvtrail.dashboard.views.tables import number_column, request_labels
from kvtrail.tracer.model.words import some

MOST = 200
TABLE = "requests_table"
LATEST = "latest"
COUNTS = {
    "Findings": "finding", "Prompt": "prompt", "Loaded": "loaded tokens", "Loads": "loads", "Recomputed": "recomputed tokens",
    "Stored": "stored tokens", "Preemptions": "preemption",
}  # fmt: skip
"""Columns of counts, and their terms in the glossary."""
ADDRESS = {"engine": "on"}
"""Filters' names in the address. Streamlit writes the next page's query over this page's before it leaves, so that on the way
back a request's `engine` would filter the list."""
IMMUTABLE = ("engine", "service", "model")
"""Filters by properties that a request never changes."""


@st.fragment(run_every=EVERY_S)
def page(search: str, order: str, chosen: dict[str, str]) -> None:
    """Draw the table, again at each refresh."""
    # A search for an id covers all time.
    window = {} if search else {"since_ns": picker.current().since_ns, "before_ns": picker.current().until_ns}

    def ask() -> tuple[list[Row], list[Row]]:
        found = tracer().requests(search=search, sort=order, limit=MOST, **requests.filters(chosen), **window)
        return found, others_shown(found, search, chosen)

    answer = read(ask, key=f"requests {search!r} {order} {chosen} {picker.current().field()}")
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
        formats=formats(rows, now_ns=now_ns),
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


def formats(rows: list[Row], *, now_ns: int) -> dict[str, Any]:
    """The column options; with dates if not all are today."""
    days = {datetime.fromtimestamp(at_ns / 1e9, UTC).date() for at_ns in (now_ns, *(r["started_ns"] for r in rows))}
    clock = "YYYY-MM-DD HH:mm:ss.SSS" if len(days) > 1 else "HH:mm:ss.SSS"
    return {
        **{name: number_column(term) for name, term in COUNTS.items()},
        **request_labels(),
        "Request": st.column_config.TextColumn(pinned=True),
        "Started": st.column_config.DatetimeColumn("Started (UTC)", format=clock, timezone="UTC"),
        "Duration": number_column("duration", format="%.3f s"),
        "Waited": number_column("waited for KV", format="%.3f s"),
    }


def filters() -> tuple[str, str, dict[str, str]]:
    """The search, the sort order, and the filters in use; the page's address holds them all."""
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
        texts = requests.ORDERS
        order = one_of("Sort by", list(texts), name="sort", default=LATEST, text=texts.__getitem__)
    return (search or "").strip(), order, {name: value for name, value in chosen.items() if value}


picker.heading("Requests")
search, order, chosen = filters()
if pasted.is_text(search):
    about_text(search)
else:
    page(search, order, chosen)
