"""The list of requests: searched, filtered, live; a click on a row opens the request."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from kvtrail.dashboard import tables, wording
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.views.parts import EVERY_S, opening_table, read, tracer

SHOWN = 200
ANY = "any"


@st.fragment(run_every=EVERY_S)
def page(search: str, status: str, verdict: str) -> None:
    """Draw the table, again and again."""

    def ask() -> list[Row]:
        return tracer().requests(search=search, status=status, verdict=verdict, limit=SHOWN)

    requests = read(ask, key=f"requests {search!r} {status} {verdict}")
    if requests is None:
        return
    if not requests:
        filtered = search or status or verdict
        st.info(
            "No request fits. Widen the search." if filtered else "No requests yet. The overview says how to begin."
        )
        return
    now_ns = time.time_ns()
    st.caption(
        f"The latest {SHOWN} that fit; search to reach older ones. Click a row to open it."
        if len(requests) == SHOWN
        else f"{wording.some(len(requests), 'request')}, latest first. Click a row to open it."
    )
    opening_table(
        tables.request_rows(requests, now_ns=now_ns),
        key="requests_table",
        opens=[("views/request.py", {"id": r["request"], "engine": r["engine"]}) for r in requests],
        columns=columns(requests, now_ns=now_ns),
        most_rows=20,
    )


def columns(requests: list[Row], *, now_ns: int) -> dict[str, Any]:
    """How the columns look."""
    today = datetime.fromtimestamp(now_ns / 1e9, UTC).date()
    older = any(datetime.fromtimestamp(r["started_ns"] / 1e9, UTC).date() != today for r in requests)
    counts = ("Findings", "Preemptions", "Total", "Computed", "Matched", "Loaded", "Stored", "Lookups")
    tokens = {
        "Total": "Tokens of the request: prompt, and its output so far.",
        "Computed": "Tokens that vLLM held as computed, as the last call said.",
        "Matched": "Tokens of the prefix that the connector's store held, as the last lookup said.",
        "Loaded": "Tokens copied from the connector's store, over all epochs.",
        "Stored": "Tokens copied into the connector's store, over all epochs.",
    }
    return {
        **{name: st.column_config.NumberColumn(name, format="localized", help=tokens.get(name)) for name in counts},
        "Request": st.column_config.TextColumn("Request", pinned=True),
        "Started": st.column_config.DatetimeColumn(
            "Started (UTC)", format="YYYY-MM-DD HH:mm:ss.SSS" if older else "HH:mm:ss.SSS", timezone="UTC"
        ),
        "Duration": st.column_config.NumberColumn("Duration", format="%.3f s"),
    }


def filters() -> tuple[str, str, str]:
    """The search and the filters; all of them are in the page's address, so that it can be shared."""
    text, status, verdict = st.columns([3, 1, 1])
    search = text.text_input(
        "Search",
        key="search",
        bind="query-params",
        type="search",
        live=True,
        placeholder="Part of the request's id, engine's or external, or a whole trace id",
    )
    wanted_status = status.selectbox("Status", (ANY, *wording.STATUSES), key="status", bind="query-params")
    wanted_verdict = verdict.selectbox("Verdict", (ANY, *wording.VERDICTS), key="verdict", bind="query-params")
    return (
        (search or "").strip(),
        "" if wanted_status == ANY else wanted_status or "",
        "" if wanted_verdict == ANY else wanted_verdict or "",
    )


st.header("Requests", anchor=False)
page(*filters())
