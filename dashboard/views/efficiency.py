"""What the offload saves: hits by tier and epoch, tokens computed in vain, copies, and waits."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import efficiency, fleet
from kvtrail.dashboard.content.charts import epochs_chart, sources_chart
from kvtrail.dashboard.views import shared


def filters() -> tuple[str, str, str]:
    """The range, the engine and the connector; the choices are those of a week."""
    try:
        week = shared.tracer().efficiency(**shared.current_range("7 d").query)
    except TracerAway:
        week = {"choices": {"engines": [], "connectors": []}, "engine_names": {}}  # the page below says so
    choices = week["choices"]
    left, middle, right = st.columns([3, 2, 2])
    with left:
        chosen = shared.choose_range()
    with middle:
        engine = shared.choose("Engine", choices["engines"], name="engine", shown=week["engine_names"])
    with right:
        connector = shared.choose("Connector", choices["connectors"], name="connector")
    return chosen, engine, connector


@st.fragment(run_every=shared.SLOW_S)
def page(chosen: str, engine: str, connector: str) -> None:
    """Draw the page, again at each refresh."""
    shown = shared.current_range(chosen)

    def ask() -> tuple[Row, list[Row]]:
        source = shared.tracer()
        return source.efficiency(engine=engine, connector=connector, **shown.query), source.fleet()["engines"]

    answer = shared.read(ask, key=f"efficiency {chosen} {engine} {connector} {shown.pinned and shown}")
    if answer is None:
        return
    savings, engines = answer
    shared.pin_control(shown)
    if sentence := fleet.missing_spans([recorder for each in engines for recorder in each["recorders"]]):
        st.warning(f"{sentence} The sums below lack what those spans would have added.")
    sums = savings["worth"]
    if not sums["lookups"] and not sums["asked"]:
        st.info(
            "No lookup was traced in this window. Widen it, or remove a filter; the overview shows whether any engine sends"
            " spans at all."
        )
        return
    summary(sums)
    token_sources(savings)
    copies(sums)
    places(savings, {each["engine"]: each["model"] for each in engines})


def summary(sums: Row) -> None:
    """The numbers that matter most, how they were calculated, and what they cannot show."""
    with shared.cards("large"):
        for each in efficiency.cards(sums):
            shared.card(*each)
    st.caption(efficiency.source_of_savings(sums))
    if sentence := efficiency.limits(sums):
        st.caption(sentence)


def token_sources(savings: Row) -> None:
    """Tokens by tier, over time and by epoch."""
    st.subheader("Where the tokens of admitted requests came from", anchor=False)
    st.altair_chart(sources_chart(savings), key="sources")
    st.markdown("**By epoch**")
    st.altair_chart(epochs_chart(savings), key="epochs")
    st.caption(
        "A preempted request is admitted again, as a new epoch. vLLM's own metrics count external hits of the first run"
        " only."
    )


def copies(sums: Row) -> None:
    """Loads and stores."""
    st.subheader("Loads and stores", anchor=False)
    if not (sums["load_tokens"] or sums["store_tokens"]):
        st.caption(
            "No worker reported a copy. Connectors whose copies kvtrail cannot see show them only in their plans."
        )
        return
    st.table(efficiency.copy_rows(sums), border="horizontal", hide_index=True)
    st.caption("Bandwidth is that of one rank while it copies; it is unknown where no bytes are reported.")


def places(savings: Row, models: dict[str, str]) -> None:
    """Engines and connectors side by side."""
    st.subheader("By engine and connector", anchor=False)
    number = st.column_config.NumberColumn
    formats = {
        "Hit rate": number(format="%.1f %%", help="The share of requested tokens that the connector was to provide."),
        "vLLM's own": number(format="%.1f %%", help="The share of the same that vLLM's own prefix cache held."),
        "Spared": number(format="localized", help="Tokens that were loaded and not computed."),
        "Saved": number(format="%.2f s", help="Seconds of prefill, at this engine's measured rate."),
        "Waited": number(format="%.2f s"),
    }
    rows = efficiency.place_rows(savings, models)
    shared.table(rows, key="places", numbers=("Held, yet computed", "Unused lookups", "Preemptions"), formats=formats)
    st.caption(
        "The children of a MultiConnector are asked one after the other, and each counts what it was asked. If the"
        " MultiConnector is traced as well, it alone counts."
    )


st.header("Efficiency", anchor=False)
page(*filters())
