"""What happens now: rates, requests by status, the latest findings, and who is heard."""

from __future__ import annotations

import time
from collections import Counter

import streamlit as st

from kvtrail.dashboard import tables, wording
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.figures import status_chart
from kvtrail.dashboard.views.parts import EVERY_S, cards, finding_card, read, tracer

# Rates are averages over so many seconds: short enough for 'now', long enough not to jump with every batch.
WINDOW_S = 10
SHOWN_FINDINGS = 5
SHOWN_RECORDERS = 10
COUNTED_REQUESTS = 1000
HISTORY = 90


def ask() -> tuple[Row, Row, list[Row], list[Row]]:
    """All that the page shows, in one go: either all of it is of now, or none."""
    source = tracer()
    return (
        source.health(),
        source.overview(window_s=WINDOW_S),
        source.requests(limit=COUNTED_REQUESTS),
        source.findings(limit=SHOWN_FINDINGS),
    )


@st.fragment(run_every=EVERY_S)
def page() -> None:
    """Draw the page, again and again."""
    answer = read(ask, key="overview")
    if answer is None:
        return
    health, overview, requests, findings = answer
    now_ns = time.time_ns()
    last = health["last_received_ns"]
    heard = f"last spans at {wording.clock(last, now_ns=now_ns)} UTC" if last else "no spans since then"
    since = wording.clock(health["started_ns"], now_ns=now_ns)
    st.caption(f"Tracer {health['version']} at `{tracer().url}`, up since {since} UTC, {heard}.")
    lost = st.empty()
    if sentence := tables.losses(health["recorders"]):
        lost.warning(sentence)
    if not requests:
        nothing_yet()
        return
    counts = tables.status_counts(requests, health["recorders"], now_ns=now_ns)
    gauges(overview, counts)
    left, right = st.columns([2, 1], gap="large")
    with left:
        latest_findings(findings, overview["totals"])
    with right:
        by_status(counts, known=overview["totals"]["requests"])
    who_is_heard(health["recorders"], now_ns=now_ns)


def gauges(overview: Row, counts: Counter[str]) -> None:
    """The row of numbers, each with its last minutes."""
    totals, activity = overview["totals"], overview["activity"]

    def per_second(kind: str, field: str) -> float:
        return float(activity.get(kind, {}).get(field, 0)) / WINDOW_S

    running = sum(counts[status] for status in wording.RUNNING)
    found, drifting = totals["findings"], wording.some(totals["drifting"], "request")
    values = {
        "Requests now": (running, wording.count(running), _in_all(totals["requests"])),
        "Lookups/s": _rate(per_second("kv.lookup", "count"), _in_all(totals["lookups"])),
        "Returned tokens/s": _rate(per_second("kv.lookup", "returned"), "by lookups"),
        "Loaded tokens/s": _rate(per_second("kv.load", "count_tokens"), _in_all(totals["loaded"])),
        "Stored tokens/s": _rate(per_second("kv.store", "count_tokens"), _in_all(totals["stored"])),
        "Preemptions/s": _rate(per_second("kv.preempt", "count"), _in_all(totals["preemptions"])),
        "Findings": (found, wording.count(found), f"in {drifting}"),
    }
    history: list[dict[str, float]] = st.session_state.setdefault("history", [])
    # While the tracer is away its last answer stays on the page; that is no new point of the line.
    if overview is not st.session_state.get("counted"):
        st.session_state["counted"] = overview
        history.append({name: value for name, (value, _, _) in values.items()})
        del history[:-HISTORY]
    # A line needs two points; without it the cards would grow on the second refresh.
    past = history if len(history) > 1 else history * 2
    with cards("middle"):
        for name, (_, text, note) in values.items():
            st.metric(
                name,
                text,
                note,
                delta_color="off",
                delta_arrow="off",
                border=True,
                chart_data=[point[name] for point in past],
                chart_type="line",
            )


def _rate(value: float, note: str) -> tuple[float, str, str]:
    return value, wording.rate(value), note


def _in_all(number: int) -> str:
    return f"{wording.count(number)} in all"


def latest_findings(findings: list[Row], totals: Row) -> None:
    """The newest findings, in words."""
    st.subheader("Latest findings", anchor=False)
    if not findings:
        st.success(f"Nothing found: no event of {wording.some(totals['requests'], 'request')} contradicts another.")
    for finding in findings:
        finding_card(finding, linked=True)
    if totals["findings"] > len(findings) > 0:
        with st.container(horizontal=True):
            st.page_link("views/findings.py", label="All findings", query_params={"range": "7 d"})
            st.page_link("views/requests.py", label="All requests with drift", query_params={"verdict": "drift"})


def by_status(counts: Counter[str], *, known: int) -> None:
    """How many requests there are in each status."""
    st.subheader("Requests by status", anchor=False)
    st.altair_chart(status_chart(counts), key="statuses")
    counted = counts.total()
    scope = f"the latest {wording.count(counted)} of {wording.count(known)}" if known > counted else "all requests"
    gone = " Abandoned: never ended, and the engine is gone." if counts[wording.LEFT_OPEN] else ""
    st.caption(f"Counted over {scope}.{gone}")


def who_is_heard(recorders: list[Row], *, now_ns: int) -> None:
    """The recorders, and what each of them lost."""
    st.subheader("Recorders", anchor=False)
    if not recorders:
        st.caption("None heard since this tracer started.")
        return
    rows = tables.recorder_rows(recorders, now_ns=now_ns)
    st.table(rows[:SHOWN_RECORDERS], border="horizontal", hide_index=True)
    if len(rows) > SHOWN_RECORDERS:
        st.caption(f"The latest {SHOWN_RECORDERS} of {wording.count(len(rows))} heard since this tracer started.")


def nothing_yet() -> None:
    """What to do when no request has been seen."""
    st.subheader("No requests yet", anchor=False)
    st.markdown(
        "The tracer is up and listens. Serve a model with the traced connector, or run `kvtrail demo`, which drives a"
        " real engine on the CPU. The first request shows here within seconds."
    )


st.header("Overview", anchor=False)
page()
