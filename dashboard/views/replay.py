"""A request step by step: the call, the account after it, and its findings. The URL holds the step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.request.account import findings_by_step, missing_events
from kvtrail.dashboard.content.request.charts import over_time
from kvtrail.dashboard.content.request.phases import Stretch
from kvtrail.dashboard.content.request.replay import changes, clamped, facts, neighbours, title
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.scripts import invisible
from kvtrail.dashboard.views.charts import draw_chart, is_dark
from kvtrail.dashboard.views.request_parts import block_table, finding_cards
from kvtrail.tracer.model.words import described, some

STEP = "replay_step"
"""The session's key for the step."""
KEYS = "replay_keys"


def begin(query: Mapping[str, str]) -> None:
    """Read the step from the URL, before the whole page is drawn. The browser keeps the URL up to date."""
    st.session_state[STEP] = query.get("step", "")


def show(timeline: Row, parts: Sequence[Stretch]) -> None:
    """Draw the step, again at each refresh: a running request gets more steps."""
    steps = len(timeline["steps"])
    if not steps:
        st.info("None of this request's steps are stored any more: the tracer has deleted its spans.")
        return
    step = st.session_state[STEP] = clamped(st.session_state[STEP], steps=steps)
    findings = findings_by_step(timeline)
    if sentence := missing_events(timeline):
        st.warning(sentence)
    controls(step, steps, list(findings))
    # All on one screen: text on the left, the chart on the right. On a phone the text comes first.
    left, right = st.columns([6, 7], gap="large")
    with left:
        current_step(timeline, step)
        account(timeline, step)
        block_table(timeline["steps"][step - 1], timeline)
    with right:
        draw_chart(over_time(timeline, parts, at=step, dark=is_dark()), key="replay_timeline")
        proofs(timeline, step, findings)


def controls(step: int, steps: int, with_findings: list[int]) -> None:
    """The buttons, and the keys that do the same."""

    def go(to: int) -> None:
        st.session_state[STEP] = to

    before, after = neighbours(with_findings, step=step)
    buttons = (
        # The key is only shown here: a button's own shortcut would miss keys pressed while the page is drawn.
        ("finding_before", "Previous finding", "Shift + F", "keyboard_double_arrow_left", before),
        ("before", "Previous", "P", "chevron_left", step - 1 if step > 1 else None),
        ("after", "Next", "N", "chevron_right", step + 1 if step < steps else None),
        ("finding_after", "Next finding", "F", "keyboard_double_arrow_right", after),
    )
    with st.container(horizontal=True, gap="small"):
        for name, label, key, icon, to in buttons:
            st.button(
                f"{label} {key}" if to is None else f"{label} :gray[{key}]",
                key=name,
                icon=f":material/{icon}:",
                icon_position="left" if "before" in name else "right",
                disabled=to is None,
                on_click=go,
                args=(to,),
            )

    def pressed() -> dict[str, Any]:
        return st.session_state.get(KEYS, {}).get("pressed") or {}

    data = {"step": step, "steps": steps, "with_findings": with_findings, "presses": pressed().get("presses", 0)}
    invisible("replay_keys")(key=KEYS, data=data, on_pressed_change=lambda: go(int(pressed()["step"])))


def current_step(timeline: Row, step: int) -> None:
    """The step's event."""
    shown = timeline["steps"][step - 1]
    st.markdown(f"**{plain(title(timeline, step=step))}**")
    st.markdown(plain(described(shown["name"], shown["numbers"])))
    st.caption(plain(" · ".join(facts(timeline, step=step, now_ns=time.time_ns()))))
    if shown["error"]:
        st.error(f"It raised. {plain(shown['error'])}")


def account(timeline: Row, step: int) -> None:
    """The account after the step, beside the one before it."""
    rows = changes(timeline, step=step)
    if not rows:
        st.caption("No account yet: the request has not arrived.")
        return
    table = []
    for row in rows:
        name, value, before = (plain(row[each] or "") for each in ("label", "value", "other"))
        if row["differs"]:
            name, value, before = f"**{name}**", f"**{value}**", f":gray[{before}]"
        table.append({"": name, "Account after it": value, "Before": before if row["differs"] else ""})
    st.table(table, border="horizontal", hide_index=True)


def proofs(timeline: Row, step: int, findings: dict[int, list[Row]]) -> None:
    """The findings that the step proves."""
    finding_cards(findings.get(step, []), timeline)
    if earlier := sum(len(each) for number, each in findings.items() if number < step):
        st.caption(f"{some(earlier, 'finding')} before this step.")
