"""What several pages say of a request: its badges, its account, its findings, and that it is not known."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.views.cards import badge
from kvtrail.dashboard.views.links import link, request_query, runbook_link
from kvtrail.tracer.model import words


def request_badges(request: Row) -> None:
    """A request's status and verdict."""
    badge(request["status"])
    badge(request["verdict"], label=f"verdict: {request['verdict']}")


def account_table(rows: Iterable[Row], *, headings: tuple[str, str], other: str = "**{}**", **options: Any) -> None:
    """`content.request.account_rows` under two headings; values that differ are bold, the second one as `other` says."""
    table = []
    for row in rows:
        name, value, beside = (text.plain(row[each] or "") for each in ("name", "value", "other"))
        if row["differs"]:
            name, value, beside = f"**{name}**", f"**{value}**", other.format(beside)
        table.append({"": name, headings[0]: value, headings[1]: beside})
    st.table(table, border="horizontal", hide_index=True, **options)


def unknown_request(request_id: str, *, trace_id: str = "") -> None:
    """The tracer does not know the request that the address names."""
    st.header("Request not known", anchor=False)
    by_id = f"{text.plain(request_id)}, by its engine's or its external id"
    st.markdown(
        f"The tracer knows no request {by_id if request_id else f'of trace {text.plain(trace_id)}'}. It may be older than"
        " what the tracer retains, or its first spans are still on their way; this page looks again every 2 s."
    )
    link("requests", "All requests")


def which_request(path: str) -> None:
    """The address names no request."""
    st.header("Which request?", anchor=False)
    or_trace = ", or its trace's as `/request?trace=...`" if path == "request" else ""
    st.markdown(f"This page needs a request's id in its address, as `/{path}?id=...`{or_trace}.")
    link("requests", "Choose one from the list")


def finding_card(finding: Row, *, linked: bool, step: int | None = None, request: Row | None = None) -> None:
    """A finding in words: what it could do at worst, and what it did. `linked` adds a link to its request, `step` one to
    that step of its replay, `request` what became of it."""
    now_ns = time.time_ns()
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            badge(finding["severity"], label=f"could: {finding['severity']}")
            badge(finding["did"], label=f"did: {finding['did']}")
            st.markdown(f"**{text.plain(finding['title'])}**", width="content")
        count = finding["count"]
        when = f"{text.clock(finding['first_ns'], now_ns=now_ns)} UTC"
        if count > 1:
            when = f"from {when} to {text.clock(finding['last_ns'], now_ns=now_ns)} UTC"
        fate = ""
        if request is not None and (request["ended_ns"] is not None or request["status"] == "failed"):
            fate = f"; {words.became(request['status'], request['reason'], request['error'])}"
        st.caption(
            f"rule {finding['rule']}, epoch {finding['epoch']}, seen {words.ending(count)}, {when},"
            f" {words.healed(finding['healed'], count=count)}{text.plain(fate)}"
        )
        st.markdown(text.plain(finding["explanation"]))
        if not linked:
            with st.expander("What to do, and the numbers"):
                st.markdown(text.plain(finding["hint"]))
                numbers = {name.replace("_", " "): words.value(value) for name, value in finding["numbers"].items()}
                st.table([numbers], border="horizontal", hide_index=True, width="content")
        with st.container(horizontal=True, gap="medium"):
            if linked:
                label = f"Open request {text.plain(finding['request'])}"
                link("request", label, icon="arrow_forward", query=request_query(finding))
            if step is not None:
                label = f"Replay from step {words.count(step)}, where it shows"
                link("replay", label, icon="play_arrow", query=request_query(finding, step=step))
            runbook_link(finding["rule"])
