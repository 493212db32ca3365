"""What changed at a moment, in place: what probably caused it, and which requests explain it."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import changes, charts, text
from kvtrail.dashboard.content.time_range import EXAMPLES, TimeRange, parsed
from kvtrail.dashboard.glossary import TERMS
from kvtrail.dashboard.table.columns import TENTHS, Numbers
from kvtrail.dashboard.views import address, tables
from kvtrail.dashboard.views.address import set_to, when_chosen
from kvtrail.dashboard.views.answers import remembered, tracer
from kvtrail.dashboard.views.links import link
from kvtrail.tracer.model.words import some

AT, MEASURE = "at", "measure"
"""Names in the address: the moment, and the measure of the table."""
FIELD = "explained"
"""The session's key for the field of the moment."""
EVERY_NS = 30 * 10**9
"""How often it is asked for again: sums are by the minute."""
MOST_SAID = 5
"""Sentences about measures; the table has the others."""


def choose(shown: TimeRange) -> None:
    """The field for a moment: a marker of the range, or a time that is typed."""
    try:
        marked = tracer().get("markers", **shown.query)
    except TracerAway:
        return  # the page below shows the error
    now_ns = time.time_ns()
    lines = {
        charts.marker_line(each, now_ns=now_ns): text.clock(each["at_ns"], now_ns=now_ns).removesuffix(".000")
        for each in marked
    }
    named = _moment(now_ns)
    set_to(FIELD, next((line for line, at in lines.items() if at == named), named or None))

    def write() -> None:
        chosen = st.session_state[FIELD] or ""
        address.change({AT: lines.get(chosen, chosen), MEASURE: ""})

    st.selectbox(
        "Explain what changed at",
        list(dict.fromkeys([*lines, *([st.session_state[FIELD]] if st.session_state[FIELD] else [])])),
        index=None,
        key=FIELD,
        on_change=when_chosen(FIELD, write),
        accept_new_options=True,
        placeholder=f"Explain what changed at … ({some(len(lines), 'marker')}, or type a time)",
        help=f"What was before this moment of the range is compared with what came after. Type {EXAMPLES}.",
        label_visibility="collapsed",
        width=420,
    )


def show(shown: TimeRange) -> None:
    """The explanation of the moment that the address names, if it names one."""
    now_ns = time.time_ns()
    named = _moment(now_ns)
    if not named:
        return
    at_ns = parsed(named, now_ns=now_ns)
    with st.container(border=True, key="explanation"):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.subheader(f"What changed at {text.plain(named)} UTC", anchor=False, width="content")
            others = {name: value for name, value in address.query().items() if name not in (AT, MEASURE)}
            link("overview", "Close", icon="close", query=others)
        if at_ns is None or not shown.since_ns < at_ns < shown.until_ns:
            st.info("This is no moment of the range: choose a marker, or type a time of the range.")
            return
        asked = {"at_ns": at_ns, "since_ns": shown.since_ns, "until_ns": shown.until_ns}
        question = (at_ns, shown.field(), now_ns // EVERY_NS)
        report = remembered("explanation_answer", question, lambda: tracer().get("changes", **asked))
        if report is not None:
            _explain(report, after=TimeRange(at_ns, shown.until_ns), around=shown)


def _moment(now_ns: int) -> str:
    """The moment that the address names, as a person writes it; empty if it names none."""
    named = address.query().get(AT, "")
    at_ns = parsed(named, now_ns=now_ns) if named else None
    return named if at_ns is None else text.clock(at_ns, now_ns=now_ns).removesuffix(".000")


def _explain(report: Row, *, after: TimeRange, around: TimeRange) -> None:
    names = report["engine_names"] | report["tenant_names"]
    if report["likely"]:
        st.markdown("**What probably caused it**")
    with st.container(key="likely", gap=None):
        for each in report["likely"]:
            page, query = changes.of_cause(each, after, around)
            link(page, f"{text.plain(each['text'])} →", query=query)
    found = changes.in_order(report["changes"])
    said = changes.sentences(found, names)[:MOST_SAID] or [changes.UNCHANGED]
    st.markdown("\n".join(f"- {each}" for each in said))
    if explained := [each for each in found if changes.is_large(each)]:
        _groups(explained, names, after)
    st.caption(changes.rests_on(report, now_ns=time.time_ns()))


def _groups(found: list[Row], names: Row, after: TimeRange) -> None:
    """The groups that explain one measure, ranked; a click opens their requests."""
    titles = {each["measure"]: changes.title(each) for each in found}
    measure = st.selectbox(
        "Who explains", [*titles], key=MEASURE, bind="query-params", format_func=lambda each: titles.get(each, each)
    )
    change = next((each for each in found if each["measure"] == measure), found[0])
    tables.table(
        changes.rows(change, names),
        key=f"changed_{change['measure']}",
        links=changes.links(change, after),
        ids=[(each["dimension"], each["group"]) for each in change["groups"]],
        note="What each group adds to the whole. Click a row to see its requests.",
        most_rows=8,
        looks={name: Numbers(format=TENTHS, help=TERMS[name.lower()]) for name in ("Before", "After")},
    )
