"""What the offload is worth: hits by tier and epoch, what was computed in vain, what was copied, and what was waited for."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvtrail.dashboard import tables, wording, worth
from kvtrail.dashboard.charts import epochs_chart, sources_chart
from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.views.narrowing import choose, choose_range, pinning, shown_window
from kvtrail.dashboard.views.parts import cards, read, tracer

EVERY_S = 5


def filters() -> tuple[str, str, str]:
    """The window's range, the engine and the connector; the choices are those of a week."""
    try:
        choices = tracer().efficiency(**shown_window("7 d").query)["choices"]
    except TracerAway:
        choices = {"engines": [], "connectors": []}  # the page below says so
    first, second, third = st.columns([3, 2, 2])
    with first:
        chosen = choose_range()
    with second:
        engine = choose("Engine", choices["engines"], name="engine", cut=8)
    with third:
        connector = choose("Connector", choices["connectors"], name="connector")
    return chosen, engine, connector


@st.fragment(run_every=EVERY_S)
def page(chosen: str, engine: str, connector: str) -> None:
    """Draw the page, again and again."""
    shown = shown_window(chosen)

    def ask() -> tuple[Row, Row]:
        source = tracer()
        return source.efficiency(engine=engine, connector=connector, **shown.query), source.fleet()

    answer = read(ask, key=f"efficiency {chosen} {engine} {connector} {shown.pinned and shown}")
    if answer is None:
        return
    efficiency, fleet = answer
    pinning(shown)
    if sentence := tables.losses([r for each in fleet["engines"] for r in each["recorders"]]):
        st.warning(f"{sentence} The sums below lack what they would have told.")
    told = efficiency["worth"]
    if not told["lookups"] and not told["asked"]:
        st.info(
            "No lookup was traced in this window. Widen it, or take a filter back; the overview says whether anything is"
            " heard at all."
        )
        return
    head(told)
    where_from(efficiency)
    copies(told)
    places(efficiency, {each["engine"]: each["model"] for each in fleet["engines"]})


def head(told: Row) -> None:
    """The numbers that matter most, and how they are known."""
    with cards("large"):
        for name, value, note in worth.gauges(told):
            st.metric(name, value, note, delta_color="off", delta_arrow="off", border=True)
    st.caption(worth.how_it_is_known(told))
    if sentence := worth.limits(told):
        st.caption(sentence)


def where_from(efficiency: Row) -> None:
    """Tokens by tier, over time and by epoch."""
    st.subheader("Where the tokens of admitted requests came from", anchor=False)
    st.altair_chart(sources_chart(efficiency), key="sources")
    st.markdown("**By epoch**")
    st.altair_chart(epochs_chart(efficiency), key="epochs")
    st.caption(
        "A request that was preempted is admitted again, as a new epoch. vLLM's own metrics count external hits of the first"
        " run alone."
    )


def copies(told: Row) -> None:
    """Loads and stores."""
    st.subheader("Loads and stores", anchor=False)
    if not (told["load_tokens"] or told["store_tokens"]):
        st.caption(
            "No worker told of a copy. Connectors that copy out of kvtrail's sight show it in their plans alone."
        )
        return
    st.table(worth.copy_rows(told), border="horizontal", hide_index=True)
    st.caption("Bandwidth is that of one rank while it copies; where no bytes are told, it is not known.")


def places(efficiency: Row, models: dict[str, str]) -> None:
    """Engines and connectors side by side."""
    rows = worth.place_rows(efficiency, models)
    st.subheader("By engine and connector", anchor=False)
    height = min(38 + 35 * len(rows), 460)
    st.dataframe(
        rows, key="places", hide_index=True, column_config=columns(), height=height, placeholder=wording.NOTHING
    )
    st.caption("The children of a MultiConnector are asked one after the other, and each counts what it was asked.")


def columns() -> dict[str, Any]:
    """How the columns look."""
    share = st.column_config.NumberColumn
    return {
        "Hit rate": share(
            "Hit rate", format="%.1f %%", help="Of the tokens asked for, what the connector was to bring."
        ),
        "vLLM's own": share("vLLM's own", format="%.1f %%", help="Of the same, what vLLM's own prefix cache held."),
        "Spared": share("Spared", format="localized", help="Tokens that were loaded and not computed."),
        "Saved": share("Saved", format="%.2f s", help="Seconds of prefill, at this engine's measured rate."),
        "Held, yet computed": share("Held, yet computed", format="localized"),
        "Unused lookups": share("Unused lookups", format="localized"),
        "Waited": share("Waited", format="%.2f s"),
        "Preemptions": share("Preemptions", format="localized"),
    }


st.header("Efficiency", anchor=False)
page(*filters())
