"""What happens now: rates, requests by status, the latest findings, and the recorders."""

from __future__ import annotations

import time
from collections import Counter

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import fleet, text, unknown
from kvtrail.dashboard.content.badges import ABANDONED, ACTIVE
from kvtrail.dashboard.content.charts import status_chart
from kvtrail.dashboard.content.requests import status_counts
from kvtrail.dashboard.views import shared
from kvtrail.tracer.model.words import count, some

# Rates are averages over this time: short enough to be current, long enough not to jump with every batch.
RATE_S = 10
SHOWN_FINDINGS = 5
SHOWN_RECORDERS = 10
COUNTED_REQUESTS = 1000
HISTORY = 90


def ask() -> tuple[Row, Row, list[Row], list[Row]]:
    """All that the page shows, at once: either all of it is current, or nothing is."""
    source = shared.tracer()
    return (
        source.health(),
        source.overview(window_s=RATE_S),
        source.requests(limit=COUNTED_REQUESTS),
        source.findings(limit=SHOWN_FINDINGS),
    )


@st.fragment(run_every=shared.EVERY_S)
def page() -> None:
    """Draw the page, again at each refresh."""
    answer = shared.read(ask, key="overview")
    if answer is None:
        return
    health, overview, requests, findings = answer
    now_ns = time.time_ns()
    st.caption(fleet.tracer_status(health, url=shared.tracer().url, now_ns=now_ns))
    warning = st.empty()
    if sentence := fleet.missing_spans(health["recorders"]):
        warning.warning(sentence)
    if not requests:
        st.subheader("No requests yet", anchor=False)
        st.markdown(
            "The tracer is up and listening. Serve a model with the traced connector, or run `kvtrail demo`, which drives a"
            " real engine on the CPU. The first request shows here within seconds."
        )
        return
    counts = status_counts(requests, health["recorders"], now_ns=now_ns)
    rates(overview, counts)
    left, right = st.columns([2, 1], gap="large")
    with left:
        latest_findings(findings, overview["totals"])
    with right:
        by_status(counts, known=overview["totals"]["requests"])
    if line := unknown.share(overview):
        with st.expander(f"{line}, since the tracer started"):
            st.table(unknown.rows(overview), border="horizontal", hide_index=True)
    shared.recorder_table(health["recorders"], now_ns=now_ns, most=SHOWN_RECORDERS)


def rates(overview: Row, counts: Counter[str]) -> None:
    """A row of cards, each with its last minutes as a line."""
    totals, activity = overview["totals"], overview["activity"]

    def per_second(kind: str, field: str, total: str = "") -> tuple[float, str, str]:
        value = float(activity.get(kind, {}).get(field, 0)) / overview["window_s"]
        return value, text.rate(value), f"{count(totals[total])} in all" if total else "by lookups"

    active = sum(counts[status] for status in ACTIVE)
    values = {
        "Requests now": (active, count(active), f"{count(totals['requests'])} in all"),
        "Lookups/s": per_second("kv.lookup", "count", "lookups"),
        "Returned tokens/s": per_second("kv.lookup", "returned"),
        "Loaded tokens/s": per_second("kv.load", "count_tokens", "loaded"),
        "Stored tokens/s": per_second("kv.store", "count_tokens", "stored"),
        "Preemptions/s": per_second("kv.preempt", "count", "preemptions"),
        "Findings": (totals["findings"], count(totals["findings"]), f"in {some(totals['drifting'], 'request')}"),
    }
    history: list[dict[str, float]] = st.session_state.setdefault("history", [])
    # While the tracer does not answer, its last answer stays on the page; that is no new point of the line.
    if overview is not st.session_state.get("counted"):
        st.session_state["counted"] = overview
        history.append({name: value for name, (value, _, _) in values.items()})
        del history[:-HISTORY]
    # A line needs two points; without it the cards would grow at the second refresh.
    past = history if len(history) > 1 else history * 2
    with shared.cards("middle"):
        for name, (_, value, note) in values.items():
            shared.card(name, value, note, chart_data=[point[name] for point in past], chart_type="line")


def latest_findings(findings: list[Row], totals: Row) -> None:
    """The newest findings, in words."""
    st.subheader("Latest findings", anchor=False)
    if not findings:
        st.success(f"No findings: no event of {some(totals['requests'], 'request')} contradicts another.")
    for finding in findings:
        shared.finding_card(finding, linked=True)
    if totals["findings"] > len(findings) > 0:
        with st.container(horizontal=True):
            shared.link("findings", "All findings", query={"range": "7 d"})
            shared.link("requests", "All requests with drift", query={"verdict": "drift"})


def by_status(counts: Counter[str], *, known: int) -> None:
    """How many requests there are in each status."""
    st.subheader("Requests by status", anchor=False)
    st.altair_chart(status_chart(counts), key="statuses")
    counted = counts.total()
    scope = f"the latest {count(counted)} of {count(known)}" if known > counted else "all requests"
    gone = " Abandoned: never ended, and the engine is gone." if counts[ABANDONED] else ""
    st.caption(f"Counted over {scope}.{gone}")


st.header("Overview", anchor=False)
page()
