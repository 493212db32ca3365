"""What was found: by rule, over time, and one by one; a click on a finding opens its request."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvtrail.dashboard import found, tables, wording
from kvtrail.dashboard.charts import findings_chart
from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.views.narrowing import choose, choose_range, pinning, shown_window
from kvtrail.dashboard.views.parts import finding_card, opening_table, read, runbook_link, tracer

PAGE = "views/findings.py"
EVERY_S = 5
SHOWN = 200
IN_WORDS = 3
FILTERS = ("rule", "severity", "connector", "engine", "model")


def filters() -> tuple[str, dict[str, str]]:
    """The window's range and the filters; their choices are what has ever been found."""
    try:
        choices = tracer().findings_trend()["choices"]
    except TracerAway:
        choices = {}  # the page below says so
    chosen = choose_range()
    columns = st.columns([3, 2, 3, 2, 2])
    given = {}
    for column, name in zip(columns, FILTERS, strict=True):
        plural = "severities" if name == "severity" else f"{name}s"
        with column:
            given[name] = choose(
                name.capitalize(), choices.get(plural, []), name=name, cut=8 if name == "engine" else None
            )
    return chosen, given


@st.fragment(run_every=EVERY_S)
def page(chosen: str, given: dict[str, str]) -> None:
    """Draw the page, again and again."""
    shown = shown_window(chosen)
    which = {name: value for name, value in given.items() if value}

    def ask() -> tuple[Row, list[Row], list[Row], list[Row]]:
        source = tracer()
        return (
            source.findings_trend(**which, **shown.query),
            source.findings(limit=SHOWN, **which, **shown.query),
            source.rules(),
            source.health()["recorders"],
        )

    answer = read(ask, key=f"findings {chosen} {which} {shown.pinned and shown}")
    if answer is None:
        return
    trend, findings, rules, recorders = answer
    pinning(shown)
    if sentence := tables.losses(recorders):
        st.warning(sentence)
    if rule := found.rule_named(rules, which.get("rule", "")):
        rule_page(rule)
    if not findings:
        nothing(which)
        return
    st.altair_chart(findings_chart(trend), key="findings_trend")
    if "rule" not in which:
        by_rule(trend, rules)
    one_by_one(findings, total=found.total(trend))
    st.subheader("The latest in words", anchor=False)
    for finding in findings[:IN_WORDS]:
        finding_card(finding, linked=True)


def rule_page(rule: Row) -> None:
    """What the rule says, and what to do."""
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(rule["severity"], color=wording.SEVERITY_COLORS.get(rule["severity"], "gray"))  # type: ignore[arg-type]
            st.markdown(f"**{wording.plain(rule['title'])}**", width="content")
            st.caption(f"rule {rule['id']}", width="content")
        st.markdown(wording.prose(wording.paragraphs(rule["text"], without=rule["title"])))
        st.markdown(f"**What to do.** {wording.prose(rule['hint'])}")
        runbook_link(rule["id"])


def by_rule(trend: Row, rules: list[Row]) -> None:
    """The rules that found something; a click narrows the page down to one."""
    st.subheader("By rule", anchor=False)
    rows = found.rule_rows(trend, rules)
    st.caption("Click a rule to read what it says and to see its findings alone.")
    opening_table(
        rows,
        key="by_rule",
        opens=[(PAGE, {**st.query_params.to_dict(), "rule": row["Rule"]}) for row in rows],
        columns={
            "Severity": st.column_config.TextColumn("Severity", width=100),
            "Rule": st.column_config.TextColumn("Rule", width=140),
            "Findings": st.column_config.NumberColumn("Findings", format="localized", width=80),
            "Trend": st.column_config.BarChartColumn("Trend", width=150, y_min=0),
            "Says": st.column_config.TextColumn("Says", width=480),
        },
        most_rows=10,
    )


def one_by_one(findings: list[Row], *, total: int) -> None:
    """The findings; a click opens the request."""
    st.subheader("One by one", anchor=False)
    scope = wording.some(total, "finding") if total <= len(findings) else f"the latest {SHOWN} of {total:,} findings"
    st.caption(f"{scope[0].upper()}{scope[1:]}, latest first. Click one to open its request.")
    opening_table(
        found.finding_rows(findings),
        key="one_by_one",
        opens=[("views/request.py", {"id": f["request"], "engine": f["engine"]}) for f in findings],
        columns=columns(),
        most_rows=12,
    )


def columns() -> dict[str, Any]:
    """How the columns look."""
    return {
        "Last seen": st.column_config.DatetimeColumn(
            "Last seen (UTC)", format="MM-DD HH:mm:ss", timezone="UTC", width=125
        ),
        "Severity": st.column_config.TextColumn("Severity", width=95),
        "Rule": st.column_config.TextColumn("Rule", width=120),
        "Request": st.column_config.TextColumn("Request", width=110),
        "Explanation": st.column_config.TextColumn("Explanation", width=300),
        "Epoch": st.column_config.NumberColumn("Epoch", width=58),
        "Seen": st.column_config.NumberColumn("Seen", format="localized", width=55),
        "Healed": st.column_config.NumberColumn("Healed", format="localized", width=62),
        "Connector": st.column_config.TextColumn("Connector", width=135),
        "Engine": st.column_config.TextColumn("Engine", width=80),
        "Model": st.column_config.TextColumn("Model", width=95),
    }


def nothing(which: dict[str, str]) -> None:
    """No finding fits; whether that is good news depends on what was asked."""
    if which:
        st.info("No finding fits in this window. Widen it, or take a filter back.")
    else:
        st.success("Nothing was found in this window: no event that was judged contradicts another.")


st.header("Findings", anchor=False)
page(*filters())
