"""The first page: problems, in sentences that are links; changes; the totals of the range; and the engines."""

from __future__ import annotations

import time
from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import engines, overview, text
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.glossary import TERMS
from kvtrail.dashboard.views import explanation, picker
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer
from kvtrail.dashboard.views.charts import findings_chart, sources_chart
from kvtrail.dashboard.views.links import link
from kvtrail.dashboard.views.tables import cards, table
from kvtrail.tracer.model.words import some

SENTENCES = 6
"""Maximum number of sentences outside of the expander."""


def ask(shown: TimeRange) -> Row:
    """The tracer's answers about the range, queried together: either all are current, or none."""
    get, query = tracer().get, shown.query
    return {
        "status": get("status", **query),
        "savings": get("efficiency", **query),
        "trend": get("findings/trend", **query),
        "markers": get("markers", **query),
        "fleet": get("fleet"),
        "has_requests": bool(get("requests", limit=1)),
    }


def page() -> None:
    """Draw the page, again at each refresh."""
    shown, now_ns = picker.current(), time.time_ns()
    answer = read(lambda: ask(shown), key=f"overview {shown.field()}")
    about_tracer = engines.tracer_status(answer["fleet"]["tracer"], url=tracer().url, now_ns=now_ns)
    if not answer["has_requests"]:
        welcome(about_tracer)
        return
    statements(answer["status"], shown)
    explanation.show(shown)
    cards(overview.cards(answer["status"], answer["savings"]))
    over_time(answer)
    show_engines(answer["fleet"], shown, now_ns=now_ns)
    st.caption(about_tracer)


def statements(status: Row, shown: TimeRange) -> None:
    """The sentences; each links to its subject."""
    every = overview.statements(status, shown)
    with st.container(key="statements", gap=None):
        show_statements(every[:SENTENCES], first=0)
        if rest := every[SENTENCES:]:
            with st.expander(f"{len(rest)} more"):
                show_statements(rest, first=SENTENCES)


def show_statements(found: list[Row], *, first: int) -> None:
    """Sentences, each in the colour of its level (style.css)."""
    for number, each in enumerate(found, first):
        with st.container(key=f"say-{each['level']}-{number}"):
            link(each["page"], f"{text.plain(each['text'])} →", icon=overview.ICONS[each["level"]], query=each["query"])


def over_time(answer: Row) -> None:
    """The two charts side by side; a range drawn on one becomes the page's."""
    left, right = st.columns(2, gap="medium")
    with left:
        st.caption("**Tokens of admitted requests by source**")
        sources_chart(answer["savings"], answer["markers"])
    with right:
        st.caption("**Findings by severity**")
        if answer["trend"]["counts"]:
            findings_chart(answer["trend"], answer["markers"])
        else:
            st.caption("None in this range.")


def show_engines(answer: Row, shown: TimeRange, *, now_ns: int) -> None:
    """The engines of the range by state; hand-offs between engines, and blocks kept for others now; and recorders with
    losses."""
    listed = engines.in_order(engines.since(answer["engines"], shown))
    recorders = [recorder for engine in answer["engines"] for recorder in engine["recorders"]]
    st.subheader("Engines", anchor=False)
    st.caption(engines.counts(answer["engines"], shown))
    if sentence := engines.quiet_engines(recorders):
        st.warning(sentence)
    table(
        engines.engine_rows(listed, now_ns=now_ns),
        key="engines",
        links=[_link_of(engine, shown) for engine in listed],
        ids=[engine["engine"] for engine in listed],
        note="Click an engine to see what its offload saves or, if it ended with open requests, those requests.",
    )
    if answer["pairs"]:
        st.subheader("Pairs of engines", anchor=False, help=TERMS["hand-off"])
        note = "Hand-offs since this tracer started. “nobody” means that no request that takes them is known here."
        table(engines.pair_rows(answer["pairs"]), key="pairs", note=note)
    if kept := answer["kept"]:
        st.markdown("**Kept for other engines now**")
        table(
            engines.kept_rows(kept),
            key="kept",
            links=[("request", {"id": each["request"], "engine": each["engine"]}) for each in kept],
            ids=[(each["engine"], each["taker"], each["state"]) for each in kept],
            note="Click a row to see the request that has waited longest.",
        )
    if lossy := engines.recorder_rows(recorders):
        st.subheader(f"{some(len(lossy), 'recorder')} with losses", anchor=False, help=TERMS["recorder"])
        table(lossy, key="recorders")


def _link_of(engine: Row, shown: TimeRange) -> tuple[str, Mapping[str, str]]:
    """The page that a click on the engine opens."""
    if engine["cause"] and engine["cause"]["request"]:
        return "request", {"id": engine["cause"]["request"], "engine": engine["engine"]}
    on = {**shown.address, "on": engine["engine"]}
    return ("requests", {**on, "status": "lost"}) if engine["lost"] else ("savings", on)


def welcome(about_tracer: str) -> None:
    """The page of a tracer without requests: the address for spans, and a command to copy that sends some."""
    st.subheader("No requests yet: the tracer listens", anchor=False)
    st.caption(about_tracer)
    st.markdown("Any connector is traced, under its own name. Replace `MODEL`, and the connector with yours:")
    st.code(overview.engine_settings(tracer().url), language=None, wrap_lines=True)
    st.caption(
        "From another machine, use this one's name in the address (`kvtrail serve --host` admits other machines). A tracer"
        " with a token needs it in `OTEL_EXPORTER_OTLP_HEADERS`, as `authorization=Bearer%20TOKEN`. The first request appears"
        " here within seconds, without a reload. Without a GPU, `kvtrail demo` drives a real engine on the CPU, with a tracer"
        " and a dashboard of its own."
    )


picker.heading("Overview")
explanation.choose(picker.current())
st.fragment(page, run_every=picker.every_s(EVERY_S))()
