"""Findings: by rule, over time, and one by one; a click on a finding opens its request."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import fleet, text
from kvtrail.dashboard.content.charts import findings_chart
from kvtrail.dashboard.content.findings import finding_rows, rule_rows, total
from kvtrail.dashboard.views import shared
from kvtrail.tracer.model.words import some

MOST = 200
IN_WORDS = 3
FILTERS = {"rule": "rules", "severity": "severities", "connector": "connectors", "engine": "engines", "model": "models"}
"""The filters, and the api's names of their choices."""


def filters() -> tuple[str, dict[str, str]]:
    """The range and the filters that are set; their choices are what ever had a finding."""
    try:
        every = shared.tracer().findings_trend()
    except TracerAway:
        every = {"choices": {}, "engine_names": {}}  # the page below says so
    chosen = shared.choose_range()
    given = {}
    for column, (name, plural) in zip(st.columns([3, 2, 3, 2, 2]), FILTERS.items(), strict=True):
        with column:
            shown = every["engine_names"] if name == "engine" else {}
            given[name] = shared.choose(name.capitalize(), every["choices"].get(plural, []), name=name, shown=shown)
    return chosen, {name: value for name, value in given.items() if value}


@st.fragment(run_every=shared.SLOW_S)
def page(chosen: str, given: dict[str, str]) -> None:
    """Draw the page, again at each refresh."""
    shown = shared.current_range(chosen)

    def ask() -> tuple[Row, list[Row], list[Row], list[Row]]:
        source = shared.tracer()
        return (
            source.findings_trend(**given, **shown.query),
            source.findings(limit=MOST, **given, **shown.query),
            source.rules(),
            source.health()["recorders"],
        )

    answer = shared.read(ask, key=f"findings {chosen} {given} {shown.pinned and shown}")
    if answer is None:
        return
    trend, findings, rules, recorders = answer
    shared.pin_control(shown)
    if sentence := fleet.missing_spans(recorders):
        st.warning(sentence)
    for rule in rules:
        if rule["id"] == given.get("rule"):
            rule_card(rule)
    if not findings:
        if given:
            st.info("No finding matches in this window. Widen it, or remove a filter.")
        else:
            st.success("No findings in this window: no event that was judged contradicts another.")
        return
    st.altair_chart(findings_chart(trend), key="findings_trend")
    if "rule" not in given:
        by_rule(trend, rules)
    one_by_one(findings, matching=total(trend))
    st.subheader("The latest in words", anchor=False)
    for finding in findings[:IN_WORDS]:
        shared.finding_card(finding, linked=True)


def rule_card(rule: Row) -> None:
    """What the rule says, and what to do."""
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            shared.badge(rule["severity"])
            st.markdown(f"**{text.plain(rule['title'])}**", width="content")
            st.caption(f"rule {rule['id']}", width="content")
        st.markdown(text.prose(text.paragraphs(rule["text"], without=rule["title"])))
        st.markdown(f"**What to do.** {text.prose(rule['hint'])}")
        shared.runbook_link(rule["id"])


def by_rule(trend: Row, rules: list[Row]) -> None:
    """The rules that have findings; a click narrows the page down to one."""
    st.subheader("By rule", anchor=False)
    st.caption("Click a rule to read what it says and to see only its findings.")
    rows = rule_rows(trend, rules)
    shared.table(
        rows,
        key="by_rule",
        links=[("findings", {**st.query_params.to_dict(), "rule": row["Rule"]}) for row in rows],
        most_rows=10,
        numbers=("Findings",),
        widths={"Severity": 100, "Rule": 140, "Findings": 80, "Says": 480},
        formats={"Trend": st.column_config.BarChartColumn(width=150, y_min=0)},
    )


def one_by_one(findings: list[Row], *, matching: int) -> None:
    """The findings; a click opens the request."""
    st.subheader("One by one", anchor=False)
    scope = some(matching, "finding") if matching <= len(findings) else f"The latest {MOST} of {matching:,} findings"
    st.caption(f"{scope}, latest first. Click one to open its request.")
    seen = st.column_config.DatetimeColumn("Last seen (UTC)", format="MM-DD HH:mm:ss", timezone="UTC", width=125)
    shared.table(
        finding_rows(findings),
        key="one_by_one",
        links=[("request", shared.request_query(finding)) for finding in findings],
        numbers=("Seen", "Healed"),
        widths={
            "Severity": 95, "Rule": 120, "Request": 110, "Explanation": 250, "Epoch": 58, "Seen": 55, "Healed": 62,
            "Connector": 135, "Engine": 175, "Model": 90,
        },
        formats={"Last seen": seen},
    )  # fmt: skip


st.header("Findings", anchor=False)
page(*filters())
