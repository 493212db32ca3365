"""The fleet: which engines are heard, how far behind they are, and what is lost on the way."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard import fleet, tables, wording
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.views.parts import EVERY_S, cards, opening_table, read, tracer


@st.fragment(run_every=EVERY_S)
def page() -> None:
    """Draw the page, again and again."""

    def ask() -> tuple[Row]:
        return (tracer().fleet(),)

    answer = read(ask, key="fleet")
    if answer is None:
        return
    (told,) = answer
    now_ns = time.time_ns()
    st.caption(fleet.sidecar(told["tracer"], url=tracer().url, now_ns=now_ns))
    if sentence := tables.losses([r for engine in told["engines"] for r in engine["recorders"]]):
        st.warning(sentence)
    if not told["engines"]:
        st.subheader("No engine yet", anchor=False)
        st.markdown(
            "The tracer is up and listens. An engine shows here with the first span of its recorder: a traced connector"
            " sends one within five seconds of its start, even if it serves nobody."
        )
        return
    with cards("large"):
        for name, value, note in fleet.counts(told, now_ns=now_ns):
            st.metric(name, value, note, delta_color="off", delta_arrow="off", border=True)
    engines(told["engines"], now_ns=now_ns)
    recorders(told["engines"], now_ns=now_ns)


def engines(listed: list[Row], *, now_ns: int) -> None:
    """The engines; a click leads to what the offload is worth there."""
    st.subheader("Engines", anchor=False)
    rows = fleet.engine_rows(listed, now_ns=now_ns)
    st.caption("Click one to see what its offload is worth.")
    opening_table(
        rows,
        key="engines",
        opens=[("views/efficiency.py", {"engine": row["Engine"]}) for row in rows],
        columns={
            "Engine": st.column_config.TextColumn("Engine", width=260),
            "Open requests": st.column_config.NumberColumn("Open requests", format="localized"),
            "Last heard": st.column_config.TextColumn("Last heard (UTC)"),
        },
        most_rows=12,
    )


def recorders(listed: list[Row], *, now_ns: int) -> None:
    """The recorders; whoever loses something is on top."""
    st.subheader("Recorders", anchor=False)
    rows = fleet.recorder_rows(listed, now_ns=now_ns)
    if not rows:
        st.caption("None heard since this tracer started.")
        return
    st.caption(
        "One for each process of an engine. Lag: from the end of the latest event, by the recorder's clock, to its arrival,"
        " by the tracer's. Gaps: events that have not come, by their numbers."
    )
    numbers = {
        name: st.column_config.NumberColumn(name, format="localized") for name in ("Received", "Dropped", "Gaps")
    }
    columns = {
        **numbers,
        "Lag": st.column_config.TextColumn("Lag", alignment="right"),
        "Recorder": st.column_config.TextColumn("Recorder", width=180),
        "Last heard": st.column_config.TextColumn("Last heard (UTC)"),
    }
    st.dataframe(
        rows, key="recorders", hide_index=True, column_config=columns, height=min(38 + 35 * len(rows), 460),
        placeholder=wording.NOTHING,
    )  # fmt: skip


st.header("Fleet", anchor=False)
page()
