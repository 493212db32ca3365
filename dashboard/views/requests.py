"""The list of requests: searched, filtered, live; a click on a row opens the request."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.badges import STATUSES, VERDICTS
from kvtrail.dashboard.content.requests import request_rows
from kvtrail.dashboard.views import shared, tables
from kvtrail.tracer.model.words import some

MOST = 200
TOKENS = {
    "Total": "Tokens of the request: prompt, and its output so far.",
    "Computed": "Tokens that vLLM had computed, by the last call.",
    "Matched": "Tokens of the prefix that the connector's store held, by the last lookup.",
    "Loaded": "Tokens copied from the connector's store, over all epochs.",
    "Stored": "Tokens copied into the connector's store, over all epochs.",
}


@st.fragment(run_every=shared.EVERY_S)
def page(search: str, status: str, verdict: str) -> None:
    """Draw the table, again at each refresh."""

    def ask() -> list[Row]:
        return shared.tracer().requests(search=search, status=status, verdict=verdict, limit=MOST)

    requests = shared.read(ask, key=f"requests {search!r} {status} {verdict}")
    if requests is None:
        return
    if not requests:
        filtered = search or status or verdict
        st.info(
            "No request matches. Widen the search." if filtered else "No requests yet. The overview says how to begin."
        )
        return
    now_ns = time.time_ns()
    st.caption(
        f"The latest {MOST} matches; search to reach older ones. Click a row to open it."
        if len(requests) == MOST
        else f"{some(len(requests), 'request')}, latest first. Click a row to open it."
    )
    tables.table(
        request_rows(requests, now_ns=now_ns),
        key="requests_table",
        links=[("request", shared.request_query(request)) for request in requests],
        most_rows=20,
        numbers=("Findings", "Preemptions", "Lookups"),
        formats=formats(requests, now_ns=now_ns),
    )


def formats(requests: list[Row], *, now_ns: int) -> dict[str, Any]:
    """Columns that need more than a width; the date only if there is another than today's."""
    days = {datetime.fromtimestamp(at_ns / 1e9, UTC).date() for at_ns in (now_ns, *(r["started_ns"] for r in requests))}
    clock = "YYYY-MM-DD HH:mm:ss.SSS" if len(days) > 1 else "HH:mm:ss.SSS"
    return {
        **{name: st.column_config.NumberColumn(format="localized", help=text) for name, text in TOKENS.items()},
        "Request": st.column_config.TextColumn(pinned=True),
        "Started": st.column_config.DatetimeColumn("Started (UTC)", format=clock, timezone="UTC"),
        "Duration": st.column_config.NumberColumn(format="%.3f s"),
    }


def filters() -> tuple[str, str, str]:
    """The search and the filters; all of them are in the page's address, so that it can be shared."""
    left, middle, right = st.columns([3, 1, 1])
    search = left.text_input(
        "Search",
        key="search",
        bind="query-params",
        type="search",
        live=True,
        placeholder="Part of the request's id, engine's or external, or a whole trace id",
    )
    status = middle.selectbox("Status", (shared.ANY, *STATUSES), key="status", bind="query-params")
    verdict = right.selectbox("Verdict", (shared.ANY, *VERDICTS), key="verdict", bind="query-params")
    status, verdict = ("" if choice in (None, shared.ANY) else str(choice) for choice in (status, verdict))
    return (search or "").strip(), status, verdict


st.header("Requests", anchor=False)
page(*filters())
