"""The engines of the range by state, who hands over to whom, and their recorders with lag and losses."""

from __future__ import annotations

import time
from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import fleet, palette
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.table.columns import PERCENT, Column, Numbers
from kvtrail.dashboard.views.tables import label_column, number_column, table, text_column
from kvtrail.tracer.model.words import some


def engines(answer: Row, shown: TimeRange) -> None:
    """All about the engines, from the API's answer about the fleet."""
    now_ns = time.time_ns()
    listed = fleet.in_order(fleet.since(answer["engines"], shown))
    recorders = [recorder for engine in answer["engines"] for recorder in engine["recorders"]]
    st.subheader("Engines", anchor=False)
    st.caption(fleet.counts(answer["engines"], shown))
    for sentence in (fleet.quiet_engines(recorders), fleet.unfetched(answer["pairs"], answer["kept"])):
        if sentence:
            st.warning(sentence)
    _engine_table(listed, shown, now_ns=now_ns)
    _pairs(answer)
    if recorders:
        _recorders(recorders, now_ns=now_ns)


def _engine_table(listed: list[Row], shown: TimeRange, *, now_ns: int) -> None:
    table(
        fleet.engine_rows(listed, now_ns=now_ns),
        key="engines",
        links=[_link_of(engine, shown) for engine in listed],
        ids=[engine["engine"] for engine in listed],
        note="Click an engine to see what its offload saves; one that ended with open requests, to see these.",
        widths={"Service": 120, "Ended of": 290, "Model": 120, "Connectors": 150, "Host": 100},
        formats={
            "Engine": text_column("engine", width=180),
            "State": label_column(palette.STATE, term="state"),
            "Open": number_column("open requests", width=60),
            "Open at its end": number_column("open at its end", width=110),
            "Last seen": Column(label="Last seen (UTC)"),
        },
    )


def _link_of(engine: Row, shown: TimeRange) -> tuple[str, Mapping[str, str]]:
    """The page that a click on the engine opens."""
    cause = engine["cause"]
    if cause and cause["request"]:
        return "request", {"id": cause["request"], "engine": engine["engine"]}
    if engine["lost"]:
        return "requests", {**shown.address, "on": engine["engine"], "status": "lost"}
    return "savings", {**shown.address, "on": engine["engine"]}


def _pairs(answer: Row) -> None:
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


def _recorders(recorders: list[Row], *, now_ns: int) -> None:
    """The recorders, those with losses first."""
    lossy = sum(map(fleet.has_lost, recorders))
    lost = f"{some(lossy, 'recorder')} with losses" if lossy else "none has lost anything"
    with st.expander(
        f"{some(len(recorders), 'recorder')}, one for each process of an engine: {lost}", expanded=bool(lossy)
    ):
        table(
            fleet.recorder_rows(recorders, now_ns=now_ns),
            key="recorders",
            widths={"Engine": 175, "State": 130},
            formats={
                "Recorder": text_column("recorder", width=150),
                "Lag": text_column("lag", right=True, width=80),
                "Received": number_column("received", width=90),
                "Dropped": number_column("dropped", width=80),
                "Gaps": number_column("gaps", width=70),
                "Last seen": Column(label="Last seen (UTC)"),
            },
        )
