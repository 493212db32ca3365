"""Findings: over time, by rule with its runbook beside it, and one by one; a click on a finding opens its request."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import findings as content
from kvtrail.dashboard.content import fleet, palette, runbook, text, trends
from kvtrail.dashboard.content.legend import of_colours
from kvtrail.dashboard.table.columns import Moments
from kvtrail.dashboard.views import address, picker
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.cards import badge
from kvtrail.dashboard.views.context import is_dark
from kvtrail.dashboard.views.filters import ANY, choose, filter_bar, one_of
from kvtrail.dashboard.views.finding_cards import finding_card
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.tables import label_column, number_column, rule_columns, table
from kvtrail.tracer.model.words import some

MOST = 200
IN_WORDS = 3
ORDERS = {"latest": "Latest first", "oldest": "Oldest first"}
"""The API's orders of findings; by them, rules are in the order of their weight, or of when they were first seen."""
KNOWN = {"no": "Not known", "yes": "Known"}
"""The values of the filter in the address, and their texts."""
FILTERS = {"rule": "rules", "severity": "severities", "connector": "connectors", "engine": "engines", "model": "models"}
"""The filters, and the API's names of their choices."""
OF_ENGINE = ("engine", "model")
"""Those that are about engines, as markers are."""
RUNBOOK = "runbook"
"""The name in the address of the alert or rule whose runbook is shown alone; `all` for the list."""
TEXT_WIDTH_PX = 860
"""Longer lines are hard to read."""


class Answer(NamedTuple):
    """The data of the page, queried together.

    Attributes:
        began: how many requests began in the range, if there is no finding.
    """

    trend: Row
    findings: list[Row]
    by_rule: list[Row]
    rules: list[Row]
    recorders: list[Row]
    markers: list[Row]
    began: int


def filters() -> tuple[dict[str, str], str]:
    """The filters in use, and the order; their choices are everything that ever had a finding."""
    try:
        every = tracer().findings_trend()
    except TracerAway:
        every = {"choices": {}, "engine_names": {}}  # the page below shows the error
    given = {}
    with filter_bar():
        for name, plural in FILTERS.items():
            shown = every["engine_names"] if name == "engine" else {}
            given[name] = choose(name.capitalize(), every["choices"].get(plural, []), name=name, shown=shown)
        known = choose("Known", list(KNOWN), name="known", shown={ANY: "Known or not", **KNOWN})
        order = one_of("Sort by", list(ORDERS), name="order", default="latest", text=ORDERS.__getitem__)
    given["known"] = {"yes": "true", "no": "false"}.get(known, "")
    return {name: value for name, value in given.items() if value}, order


@st.fragment(run_every=SLOW_S)
def page(given: dict[str, str], order: str) -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()

    def ask() -> Answer:
        source = tracer()
        found = source.findings(limit=MOST, order=order, **given, **shown.query)
        return Answer(
            trend=source.findings_trend(**given, **shown.query),
            findings=found,
            by_rule=source.findings_by_rule(**given, **shown.query),
            rules=source.rules(),
            recorders=source.health()["recorders"],
            markers=source.markers(**{name: given[name] for name in OF_ENGINE if name in given}, **shown.query),
            began=0 if found else sum(source.status(**shown.query)["outcomes"].values()),
        )

    answer = read(ask, key=f"findings {shown.field()} {given} {order}", again_s=picker.again_s(SLOW_S))
    if answer is None:
        return
    if sentence := fleet.missing_spans(answer.recorders):
        st.warning(sentence)
    rule = next((each for each in answer.rules if each["id"] == given.get("rule")), None)
    if rule is None:
        _findings(answer, given, order)
        return
    left, right = st.columns([3, 2], gap="large")
    with left:
        _rule(rule, next((each for each in answer.by_rule if each["rule"] == rule["id"]), None))
        _findings(answer, given, order)
    with right, st.container(border=True, key="beside"):
        st.markdown(runbook.text(rule["id"]) or "This version has no runbook of this rule.")


def _findings(answer: Answer, given: dict[str, str], order: str) -> None:
    """The findings: over time, by rule, one by one, and some in words."""
    if not answer.findings:
        when = picker.current().text(now_ns=time.time_ns())
        if given:
            st.info(f"No finding matches from {when}. Choose a longer range, or remove a filter.")
        else:
            sentence = content.none_found(when, requests=answer.began)
            (st.success if answer.began else st.info)(sentence)
        return
    st.caption("Findings by what they could do. Drag along the chart to see a part of it.")
    st.html(of_colours(trends.severity_colours(answer.trend, dark=is_dark())))
    picker.chart_over_time(
        trends.findings_over_time(answer.trend, dark=is_dark()), answer.markers, key="findings_trend"
    )
    if "rule" not in given:
        _by_rule(answer.by_rule, oldest_first=order == "oldest")
    _one_by_one(answer.findings, matching=content.total(answer.trend), order=order)
    st.subheader(f"The {order} in words", anchor=False)
    for finding in content.latest_of_each_rule(answer.findings, most=IN_WORDS):
        finding_card(finding)


def _rule(rule: Row, summary: Row | None) -> None:
    """The rule's title, what to do, and since when it has findings."""
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            badge(rule["severity"], label=f"severity: {rule['severity']}")
            st.markdown(f"**{text.plain(rule['title'])}**", width="content")
            st.caption(f"rule {rule['id']}", width="content")
        st.markdown(f"**What to do.** {text.prose(rule['hint'])}")
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            if summary is not None:
                st.caption(content.seen(summary, now_ns=time.time_ns()), width="content")
            others = {name: value for name, value in address.query().items() if name != "rule"}
            link("findings", "All rules", icon="arrow_back", query=others)


def _by_rule(rules: list[Row], *, oldest_first: bool) -> None:
    """The rules with findings; a click filters the page by one."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.subheader("By rule", anchor=False, width="content")
        link("findings", "All runbooks", icon="menu_book", query={RUNBOOK: "all"})
    rows = content.rule_rows(rules, oldest_first=oldest_first)
    table(
        rows,
        key="by_rule",
        links=[("findings", {**address.query(), "rule": str(row["Rule"])}) for row in rows],
        note=f"Click a rule to see its findings with its runbook beside them.{content.sample(rules)}",
        most_rows=10,
        **rule_columns(),
    )


def _one_by_one(findings: list[Row], *, matching: int, order: str) -> None:
    """The findings; a click opens the request."""
    st.subheader("One by one", anchor=False)
    scope = some(matching, "finding") if matching <= len(findings) else f"The {order} {MOST} of {matching:,} findings"
    days = {
        datetime.fromtimestamp(at_ns / 1e9, UTC).date() for at_ns in (time.time_ns(), *(f["last_ns"] for f in findings))
    }
    clock = "%m-%d %H:%M:%S" if len(days) > 1 else "%H:%M:%S"
    seen = Moments(label="Last seen (UTC)", format=clock, width=125)
    table(
        content.finding_rows(findings),
        key="one_by_one",
        links=[("request", request_query(finding)) for finding in findings],
        ids=[finding["id"] for finding in findings],
        note=f"{scope}, {order} first. Click one to open its request.",
        widths={"Rule": 120, "Says": 330, "Connector": 135, "Engine": 175, "Model": 90},
        formats={
            "Last seen": seen,
            "Severity": label_column(palette.SEVERITY, term="severity"),
            "Impact": label_column(palette.DID, term="impact"),
            "Known": label_column(palette.KNOWN, term="known"),
            "Preemptions": number_column("epoch", width=95),
        },
    )


def _runbook(name: str) -> None:
    """The runbook of an alert or a rule, or the list of all."""
    with st.container(horizontal=True, gap="medium", key="ways"):
        link("findings", "Findings", icon="arrow_back")
        if name:
            link("findings", "All runbooks", icon="list", query={RUNBOOK: "all"})
        if name in runbook.names() and not name.startswith(runbook.ALERT):
            link("findings", "Findings of this rule", icon="search", query={"rule": name})
    if (shown := runbook.text(name)) is not None:
        st.container(width=TEXT_WIDTH_PX).markdown(shown)
        return
    st.markdown(f"There is no runbook {text.plain(name)}: no alert and no rule of this version has that name.")
    for each in runbook.similar(name):
        link("findings", f"Did you mean {text.plain(each)}?", icon="arrow_forward", query={RUNBOOK: each})


if named := address.query().get(RUNBOOK, ""):
    picker.heading("Runbook", timed=False)
    _runbook("" if named == "all" else named)
else:
    picker.heading("Findings")
    page(*filters())
