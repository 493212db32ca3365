"""The fleet: which engines run, which died, were drained or went silent, how they are mixed, and what is lost on the way."""

from __future__ import annotations

import time
from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import fleet, palette
from kvtrail.dashboard.views import picker
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer
from kvtrail.dashboard.views.cards import card, cards
from kvtrail.dashboard.views.columns import labels, number, words
from kvtrail.dashboard.views.tables import table
from kvtrail.dashboard.views.welcome import welcome
from kvtrail.tracer.model.words import some


@st.fragment(run_every=EVERY_S)
def page() -> None:
    """Draw the page, again at each refresh."""
    answer = read(tracer().fleet, key="fleet")
    if answer is None:
        return
    now_ns = time.time_ns()
    if not answer["engines"]:
        welcome(answer["tracer"])
        return
    recorders = [recorder for engine in answer["engines"] for recorder in engine["recorders"]]
    for sentence in (fleet.missing_spans(recorders), fleet.quiet_engines(recorders)):
        if sentence:
            st.warning(sentence)
    with cards("small"):
        for each in fleet.counts(answer):
            card(*each)
    engines = fleet.in_order(answer["engines"])
    engine_table(engines, now_ns=now_ns)
    versions(engines)
    recorder_table(recorders, now_ns=now_ns)
    st.caption(fleet.tracer_status(answer["tracer"], url=tracer().url, now_ns=now_ns))


def engine_table(engines: list[Row], *, now_ns: int) -> None:
    """The engines; a click opens what one died of, or what its offload saves."""
    st.subheader("Engines", anchor=False)
    table(
        fleet.engine_rows(engines, now_ns=now_ns),
        key="engines",
        links=[leads_to(engine) for engine in engines],
        ids=[engine["engine"] for engine in engines],
        note="Click one to see what its offload saves; one that has died, to see the request that it died of.",
        widths={"Service": 120, "Ended of": 290, "Model": 120, "Connectors": 150, "Host": 100},
        formats={
            "Engine": words("engine", width=180),
            "State": labels(palette.STATE, term="state", width=90),
            "Open": number("open requests", width=60),
            "Lost": number("lost requests", width=60),
            "Last seen": st.column_config.TextColumn("Last seen (UTC)"),
        },
    )


def leads_to(engine: Row) -> tuple[str, Mapping[str, str]]:
    """The page that a click on the engine opens."""
    cause = engine["cause"]
    if cause and cause["request"]:
        return "request", {"id": cause["request"], "engine": engine["engine"]}
    return "efficiency", {"engine": engine["engine"]}


def versions(engines: list[Row]) -> None:
    """Versions side by side, where there is more than one."""
    rows = fleet.version_rows(engines)
    if len(rows) < 2:
        return
    st.subheader("Versions side by side", anchor=False)
    table(rows, key="versions", most_rows=6, numbers=("Engines", "Running", "Died"))


def recorder_table(recorders: list[Row], *, now_ns: int) -> None:
    """The recorders, those that lost something on top."""
    st.subheader("Recorders", anchor=False)
    rows = fleet.recorder_rows(recorders, now_ns=now_ns)
    if not rows:
        st.caption("No recorder sends now. One that has ended is listed for a minute.")
        return
    st.caption(
        f"{some(len(rows), 'recorder')}, one for each process of an engine; those that lost something are on top."
    )
    formats = {
        "Recorder": words("recorder", width=150),
        "Lag": words("lag", alignment="right", width=80),
        "Received": number("received", width=90),
        "Dropped": number("dropped", width=80),
        "Gaps": number("gaps", width=70),
        "Last seen": st.column_config.TextColumn("Last seen (UTC)"),
    }
    table(rows, key="recorders", widths={"Engine": 175, "State": 130}, formats=formats)


picker.heading("Fleet", timed=False)
page()
