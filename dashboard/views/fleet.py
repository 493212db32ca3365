"""The fleet: which engines send spans, how far behind they are, and what is lost on the way."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import fleet
from kvtrail.dashboard.views import shared


@st.fragment(run_every=shared.EVERY_S)
def page() -> None:
    """Draw the page, again at each refresh."""
    answer = shared.read(shared.tracer().fleet, key="fleet")
    if answer is None:
        return
    now_ns = time.time_ns()
    recorders = [recorder for engine in answer["engines"] for recorder in engine["recorders"]]
    st.caption(fleet.tracer_status(answer["tracer"], url=shared.tracer().url, now_ns=now_ns))
    for sentence in (fleet.missing_spans(recorders), fleet.quiet_engines(recorders)):
        if sentence:
            st.warning(sentence)
    if not answer["engines"]:
        st.subheader("No engine yet", anchor=False)
        st.markdown(
            "The tracer is up and listening. An engine shows here with the first span of its recorder: a traced connector"
            " sends one within five seconds of its start, even if it serves no request; through a Collector, with the first"
            " request."
        )
        return
    with shared.cards("large"):
        for each in fleet.counts(answer, now_ns=now_ns):
            shared.card(*each)
    engine_table(answer["engines"], now_ns=now_ns)
    shared.recorder_table(recorders, now_ns=now_ns)


def engine_table(engines: list[Row], *, now_ns: int) -> None:
    """The engines; a click opens what the offload saves there."""
    st.subheader("Engines", anchor=False)
    st.caption("Click one to see what its offload saves.")
    rows = fleet.engine_rows(engines, now_ns=now_ns)
    shared.table(
        rows,
        key="engines",
        links=[("efficiency", {"engine": row["Id"]}) for row in rows],
        widths={"Engine": 200, "State": 130},
        numbers=("Open requests",),
        formats={"Last seen": st.column_config.TextColumn("Last seen (UTC)")},
    )


st.header("Fleet", anchor=False)
page()
