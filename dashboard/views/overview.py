"""The first page: what is wrong, in sentences that are links; what changed; the totals of the range; and the engines."""

from __future__ import annotations

import time
from typing import NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import fleet, overview, text, trends
from kvtrail.dashboard.content.legend import of_colours
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.views import explanation, picker
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer
from kvtrail.dashboard.views.cards import card, cards
from kvtrail.dashboard.views.context import is_dark
from kvtrail.dashboard.views.engines import engines
from kvtrail.dashboard.views.links import link
from kvtrail.dashboard.views.welcome import welcome
from kvtrail.tracer.model.words import count

SENTENCES = 6


class Answer(NamedTuple):
    """The data of the page, queried together: either all of it is current, or none."""

    status: Row
    totals: Row
    savings: Row
    trend: Row
    markers: list[Row]
    fleet: Row


def ask(shown: TimeRange) -> Answer:
    """Ask the tracer about the range."""
    source = tracer()
    return Answer(
        status=source.status(**shown.query),
        totals=source.totals(),
        savings=source.efficiency(**shown.query),
        trend=source.findings_trend(**shown.query),
        markers=source.markers(**shown.query),
        fleet=source.fleet(),
    )


@st.fragment(run_every=EVERY_S)
def page() -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()
    answer = read(lambda: ask(shown), key=f"overview {shown.field()}", again_s=picker.again_s(EVERY_S))
    if answer is None:
        return
    if not answer.totals["requests"]:
        welcome(answer.fleet["tracer"])
        return
    statements(answer.status, shown)
    explanation.show(shown)
    with cards():
        for each in overview.cards(answer.status, answer.savings):
            card(*each)
    over_time(answer)
    engines(answer.fleet, shown)
    foot(answer)


def statements(status: Row, shown: TimeRange) -> None:
    """The sentences; each links to its subject."""
    every = overview.statements(status, shown)
    with st.container(key="statements", gap=None):
        at_once = overview.shown_at_once(len(every), SENTENCES)
        for number, each in enumerate(every[:at_once]):
            show_statement(each, key=f"say-{each.level}-{number}")
        if rest := every[at_once:]:
            with st.expander(f"{count(len(rest))} more"):
                for number, each in enumerate(rest, at_once):
                    show_statement(each, key=f"say-{each.level}-{number}")


def show_statement(statement: overview.Statement, *, key: str) -> None:
    """One sentence, in the colour of its level (style.css)."""
    with st.container(key=key):
        link(
            statement.page,
            f"{text.plain(statement.text)} →",
            icon=overview.ICONS[statement.level],
            query=statement.query,
        )


def over_time(answer: Answer) -> None:
    """The two charts side by side; a range drawn on one becomes the page's."""
    left, right = st.columns(2, gap="medium")
    with left:
        st.caption("**Tokens of admitted requests, by where they came from**")
        st.html(of_colours(trends.source_colours(answer.savings, dark=is_dark())))
        picker.chart_over_time(trends.sources_over_time(answer.savings, dark=is_dark()), answer.markers, key="sources")
    with right:
        st.caption("**Findings, by what they could do**")
        if answer.trend["counts"]:
            st.html(of_colours(trends.severity_colours(answer.trend, dark=is_dark())))
            picker.chart_over_time(
                trends.findings_over_time(answer.trend, dark=is_dark()), answer.markers, key="findings"
            )
        else:
            st.caption("None in this range.")


def foot(answer: Answer) -> None:
    """The tracer's own status."""
    st.caption(fleet.tracer_status(answer.fleet["tracer"], url=tracer().url, now_ns=time.time_ns()))


picker.heading("Overview")
explanation.choose(picker.current())
page()
