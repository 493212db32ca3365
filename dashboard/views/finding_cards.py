"""Findings on cards: impact, severity, explanation, what to do, witnesses."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import findings as content
from kvtrail.dashboard.content import text
from kvtrail.dashboard.views.cards import badge
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.tracer.model import words

MOST = 3
"""Findings shown outside of the expander."""


def request_finding_cards(findings: list[Row], timeline: Row, *, steps: dict[str, int] | None = None) -> None:
    """A request's findings, one below the other. With `steps` (finding id to step number) each links to the replay."""
    for finding in findings[:MOST]:
        _card(finding, timeline, (steps or {}).get(finding["id"]))
    if rest := findings[MOST:]:
        with st.expander(f"{words.some(len(rest), 'more finding')} of this request"):
            for finding in rest:
                _card(finding, timeline, (steps or {}).get(finding["id"]))


def finding_card(finding: Row) -> None:
    """A finding on a page of many requests, with a link to its own."""
    with st.container(border=True, gap="small"):
        _summary(finding)
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            label = f"Open request {text.plain(finding['request'])}"
            link("request", label, icon="arrow_forward", query=request_query(finding))
            _footer(finding)


def _card(finding: Row, timeline: Row, step: int | None) -> None:
    with st.container(border=True, gap="small"):
        _summary(finding)
        st.markdown(f"**What to do.** {text.prose(finding['hint'])}")
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            if step is not None:
                label = f"Replay from step {words.count(step)}, where it shows"
                link("request", label, icon="play_arrow", query=request_query(finding, step=step))
            link("findings", "Runbook", icon="menu_book", query={"rule": finding["rule"]})
            _footer(finding)
        steps = {each["span_id"]: number for number, each in enumerate(timeline["steps"], 1)}
        with st.expander("The events that prove it, and the exact numbers"):
            _table(content.evidence(finding, steps))
            _table(content.numbers(finding))


def _summary(finding: Row) -> None:
    """Its impact, its severity, and why it is drift."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge(finding["did"], label=f"impact: {finding['did']}")
        badge(finding["severity"], label=f"severity: {finding['severity']}")
        st.markdown(f"**{text.plain(finding['title'])}**", width="content")
        if finding["known"]:
            badge("known")
    st.markdown("  \n".join(map(text.plain, content.sentences(finding))))
    if finding["known"]:
        st.caption(text.plain(content.why_known(finding["known"])))


def _footer(finding: Row) -> None:
    st.caption(content.sightings(finding, now_ns=time.time_ns()), width="content")


def _table(rows: list[Row]) -> None:
    """A table of escaped texts: Streamlit takes cells for Markdown."""
    cells = [{name: text.plain(words.value(value)) for name, value in row.items()} for row in rows]
    st.table(cells, border="horizontal", hide_index=True)
