"""The fleet: engines by state, their versions, and their recorders with lag and losses."""

from __future__ import annotations

import time
from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import fleet, palette
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.table.columns import PERCENT, Column, Numbers
from kvtrail.dashboard.views import picker
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer
from kvtrail.dashboard.views.cards import card, cards
from kvtrail.dashboard.views.tables import label_column, number_column, table, text_column
from kvtrail.dashboard.views.welcome import welcome
from kvtrail.tracer.model.words import some


@st.fragment(run_every=EVERY_S)
def page() -> None:
    """Draw the page, again at each refresh."""
    answer = read(tracer().fleet, key=f"fleet {picker.current().field()}")
    if answer is None:
        return
    now_ns, shown = time.time_ns(), picker.current()
    if not answer["engines"]:
        welcome(answer["tracer"])
        return
    recorders = [recorder for engine in answer["engines"] for recorder in engine["recorders"]]
    for sentence in (
        fleet.missing_spans(recorders),
        fleet.quiet_engines(recorders),
        fleet.unfetched(answer["pairs"], answer["kept"]),
    ):
        if sentence:
            st.warning(sentence)
    with cards("small"):
        for each in fleet.counts(answer, shown):
            card(*each)
    engines = fleet.in_order(fleet.since(answer["engines"], shown))
    engine_table(engines, now_ns=now_ns)
    if earlier := fleet.earlier(answer["engines"], shown):
        st.caption(earlier)
    pairs(answer)
    versions(engines)
    recorder_table(recorders, now_ns=now_ns)
    st.caption(fleet.tracer_status(answer["tracer"], url=tracer().url, now_ns=now_ns))


def engine_table(engines: list[Row], *, now_ns: int) -> None:
    """The engines; a click opens the request that killed one, or what its offload saves."""
    st.subheader("Engines", anchor=False)
    table(
        fleet.engine_rows(engines, now_ns=now_ns),
        key="engines",
        links=[link_of(engine) for engine in engines],
        ids=[engine["engine"] for engine in engines],
        note="Click an engine to see what its offload saves, or, if it died, the request with the finding that can have"
        " caused it.",
        widths={"Service": 120, "Ended of": 290, "Model": 120, "Connectors": 150, "Host": 100},
        formats={
            "Engine": text_column("engine", width=180),
            "State": label_column(palette.STATE, term="state"),
            "Open": number_column("open requests", width=60),
            "Lost": number_column("lost requests", width=60),
            "Last seen": Column(label="Last seen (UTC)"),
        },
    )


def link_of(engine: Row) -> tuple[str, Mapping[str, str]]:
    """The page that a click on the engine opens."""
    cause = engine["cause"]
    if cause and cause["request"]:
        return "request", {"id": cause["request"], "engine": engine["engine"]}
    return "efficiency", {"engine": engine["engine"]}


def pairs(answer: Row) -> None:
    """Who hands over to whom, and what is kept for others now; nothing where no engine hands over."""
    if not (answer["pairs"] or answer["kept"]):
        return
    st.subheader("Pairs of engines", anchor=False, help=TERMS["hand-off"])
    if answer["pairs"]:
        st.caption("Hand-offs since this tracer started. *Nobody*: no request that takes them is known here.")
        table(
            fleet.pair_rows(answer["pairs"]),
            key="pairs",
            most_rows=8,
            numbers=("Hand-offs", "Tokens", "Loaded", "Failed", "Not loaded"),
            widths={"Prefills": 175, "Decodes": 175},
            formats={
                "Leases expired": number_column("lease expired", width=110),
                "Mean wait": text_column("mean wait", right=True, width=95),
            },
        )
    if answer["kept"]:
        st.markdown("**Kept for other engines now**")
        table(
            fleet.kept_rows(answer["kept"]),
            key="kept",
            links=[("request", {"id": each["request"], "engine": each["engine"]}) for each in answer["kept"]],
            ids=[(each["engine"], each["taker"], each["state"]) for each in answer["kept"]],
            note="Click a row to see the request that has waited longest.",
            most_rows=8,
            numbers=("Hand-offs", "Tokens", "Blocks"),
            widths={"Engine": 175, "Which is": 200},
            formats={
                "Keeps for": text_column("kept for", width=175),
                "Of its pool": Numbers(format=PERCENT, width=90),
                "Oldest": text_column("oldest", right=True, width=80),
            },
        )


def versions(engines: list[Row]) -> None:
    """The versions that run side by side, if there are several."""
    rows = fleet.version_rows(engines)
    if not rows:
        return
    st.subheader("Versions side by side", anchor=False)
    table(rows, key="versions", most_rows=6, numbers=("Engines", "Running", "Died"))


def recorder_table(recorders: list[Row], *, now_ns: int) -> None:
    """The recorders, those with losses first."""
    st.subheader("Recorders", anchor=False)
    rows = fleet.recorder_rows(recorders, now_ns=now_ns)
    if not rows:
        st.caption("No recorder sends now. A recorder that ended stays listed for a minute.")
        return
    st.caption(f"{some(len(rows), 'recorder')}, one for each process of an engine; those with losses come first.")
    formats = {
        "Recorder": text_column("recorder", width=150),
        "Lag": text_column("lag", right=True, width=80),
        "Received": number_column("received", width=90),
        "Dropped": number_column("dropped", width=80),
        "Gaps": number_column("gaps", width=70),
        "Last seen": Column(label="Last seen (UTC)"),
    }
    table(rows, key="recorders", widths={"Engine": 175, "State": 130}, formats=formats)


picker.heading("Fleet")
page()
