"""The explanation of a change within the page: its probable causes, and the requests that explain it."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import changes, charts, text
from kvtrail.dashboard.content.time_range import TimeRange, parsed
from kvtrail.dashboard.views import address, filters
from kvtrail.dashboard.views.answers import remembered, tracer, unless_away
from kvtrail.dashboard.views.links import link
from kvtrail.dashboard.views.tables import table
from kvtrail.tracer.model.words import some

AT = "at"
"""The name of the moment in the URL."""
EVERY_NS = 30 * 10**9
"""Refresh interval: sums are per minute."""
MOST_SAID = 5
"""Sentences about measures."""


def choose(shown: TimeRange) -> None:
    """The choice of a moment: a marker of the range."""
    marked = unless_away(lambda: tracer().get("markers", **shown.query), [])
    now_ns = time.time_ns()
    lines = {_written(each["at_ns"], now_ns): charts.marker_line(each, now_ns=now_ns) for each in marked}
    named = {address.query().get(AT, ""): _moment(now_ns)}  # by a link of another page
    hint = f"Explain what changed at … ({some(len(lines), 'marker')})"
    with st.container(width=420):
        filters.choose("Explain what changed at", [*lines], name=AT, shown={**named, **lines, filters.ANY: hint})


def show(shown: TimeRange) -> None:
    """The explanation of the moment in the URL, if there is one."""
    now_ns = time.time_ns()
    named = _moment(now_ns)
    if not named:
        return
    at_ns = parsed(named, now_ns=now_ns)
    with st.container(border=True, key="explanation"):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.subheader(f"What changed at {text.plain(named)} UTC", anchor=False, width="content")
            others = {name: value for name, value in address.query().items() if name != AT}
            link("overview", "Close", icon="close", query=others)
        if at_ns is None or not shown.since_ns < at_ns < shown.until_ns:
            st.info("This moment is not within the range: choose a marker.")
            return
        asked = {"at_ns": at_ns, "since_ns": shown.since_ns, "until_ns": shown.until_ns}
        question = (at_ns, shown.field(), now_ns // EVERY_NS)
        report = remembered("explanation_answer", question, lambda: tracer().get("changes", **asked))
        if report is not None:
            _explain(report, after=TimeRange(at_ns, shown.until_ns), around=shown)


def _moment(now_ns: int) -> str:
    """The moment in the URL, as a user would write it; empty if there is none."""
    named = address.query().get(AT, "")
    at_ns = parsed(named, now_ns=now_ns) if named else None
    return named if at_ns is None else _written(at_ns, now_ns)


def _written(at_ns: int, now_ns: int) -> str:
    return text.clock(at_ns, now_ns=now_ns).removesuffix(".000")


def _explain(report: Row, *, after: TimeRange, around: TimeRange) -> None:
    names = report["engine_names"] | report["tenant_names"]
    if report["likely"]:
        st.markdown("**What probably caused it**")
    with st.container(key="likely", gap=None):
        for each in report["likely"]:
            page, query = changes.of_cause(each, after, around)
            link(page, f"{text.plain(each['text'])} →", query=query)
    found = changes.in_order(report["changes"])[:MOST_SAID]
    said = [changes.sentence(each) for each in found] or [changes.UNCHANGED]
    st.markdown("\n".join(f"- {each}" for each in said))
    if explained := changes.explaining(found):
        table(
            changes.rows(explained, names),
            key="changed",
            links=[("requests", {**after.address, **changes.filters(group)}) for _, group in explained],
            ids=[(change["measure"], group["dimension"], group["group"]) for change, group in explained],
            note="The groups that explain most of it. Click a row to see its requests.",
        )
    st.caption(changes.rests_on(report, now_ns=time.time_ns()))
