"""Findings: over time, by rule with its runbook beside it, and one by one; a click on a finding opens its request."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import engines, requests, runbook, text
from kvtrail.dashboard.content import findings as content
from kvtrail.dashboard.views import address, picker
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer, unless_away
from kvtrail.dashboard.views.charts import findings_chart
from kvtrail.dashboard.views.filters import ANY, choose, filter_bar, one_of
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.request_parts import badge
from kvtrail.dashboard.views.tables import table
from kvtrail.tracer.model.words import some

MOST = 200
ORDERS = {"latest": "Latest first", "oldest": "Oldest first"}
"""The API's orders of findings. Rules are accordingly sorted by weight, or by when they were first seen."""
KNOWN = {"no": "Not known", "yes": "Known"}
"""The values of the filter in the URL, and their texts."""
OF_ENGINE = ("engine", "model")
"""The filters that also apply to markers, since they select engines."""
RUNBOOK = "runbook"
"""The URL parameter with the alert or rule whose runbook is shown alone; `all` for the list."""
TEXT_WIDTH_PX = 860
"""Maximum width of text, for readability."""


def filters() -> tuple[dict[str, str], str]:
    """The filters in use, and the order."""
    rules = [rule["id"] for rule in unless_away(lambda: tracer().get("rules"), [])]
    of_engines = requests.choices(unless_away(lambda: tracer().get("fleet")["engines"], []))
    with filter_bar():
        given = {"rule": choose("Rule", rules, name="rule")}
        for name in OF_ENGINE:
            given[name] = choose(name.capitalize(), list(of_engines[name]), name=name, shown=of_engines[name])
        known = choose("Known", list(KNOWN), name="known", shown={ANY: "Known or not", **KNOWN})
        order = one_of("Sort by", list(ORDERS), name="order", default="latest", text=ORDERS.__getitem__)
    given["known"] = {"yes": "true", "no": "false"}.get(known, "")
    return {name: value for name, value in given.items() if value}, order


def page(given: dict[str, str], order: str) -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()

    def ask() -> Row:
        get, query = tracer().get, shown.query
        return {
            "trend": get("findings/trend", **given, **query),
            "findings": get("findings", limit=MOST, order=order, **given, **query),
            "by_rule": get("findings/rules", **given, **query),
            "rules": get("rules"),
            "recorders": get("health")["recorders"],
            "markers": get("markers", **{name: given[name] for name in OF_ENGINE if name in given}, **query),
        }

    answer = read(ask, key=f"findings {shown.field()} {given} {order}")
    if sentence := engines.missing_spans(answer["recorders"]):
        st.warning(sentence)
    rule = next((each for each in answer["rules"] if each["id"] == given.get("rule")), None)
    if rule is None:
        _findings(answer, given, order)
        return
    left, right = st.columns([3, 2], gap="large")
    with left:
        _rule(rule, answer)
        _findings(answer, given, order)
    with right, st.container(border=True, key="beside"):
        st.markdown(runbook.text(rule["id"]) or "This version has no runbook of this rule.")


def _findings(answer: Row, given: dict[str, str], order: str) -> None:
    """The findings: over time, by rule, and as a list."""
    if not answer["findings"]:
        when = picker.current().field()
        st.info(
            f"No finding from {when}{' matches. Remove a filter, or choose' if given else '. Choose'} a longer range."
        )
        return
    st.caption("Findings by severity. Drag along the chart to zoom in.")
    findings_chart(answer["trend"], answer["markers"])
    if "rule" not in given:
        _by_rule(answer["by_rule"], oldest_first=order == "oldest")
    st.subheader("One by one", anchor=False)
    for reason in content.reasons(answer["findings"]):
        st.caption(text.plain(reason))
    matching = sum(each["findings"] for each in answer["trend"]["counts"])
    scope = some(matching, "finding") if matching <= MOST else f"The {order} {MOST} of {matching:,} findings"
    table(
        content.finding_rows(answer["findings"]),
        key="one_by_one",
        links=[("request", request_query(finding)) for finding in answer["findings"]],
        ids=[finding["id"] for finding in answer["findings"]],
        note=f"{scope}, {order} first. Click one to open its request, with the proof and what to do.",
        most_rows=20,
    )


def _rule(rule: Row, answer: Row) -> None:
    """The rule's title, and since when it has findings."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        badge(rule["severity"], label=f"severity: {rule['severity']}")
        st.markdown(f"**{text.plain(rule['title'])}**", width="content")
        others = {name: value for name, value in address.query().items() if name != "rule"}
        link("findings", "All rules", icon="arrow_back", query=others)
    for summary in answer["by_rule"]:
        st.caption(content.seen(summary, now_ns=time.time_ns()))


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
        note="Click a rule to see its findings and its runbook. What they did is known of the latest ones only.",
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


if named := address.query().get(RUNBOOK, ""):
    picker.heading("Runbook", timed=False)
    _runbook("" if named == "all" else named)
else:
    picker.heading("Findings")
    st.fragment(page, run_every=picker.every_s(SLOW_S))(*filters())
