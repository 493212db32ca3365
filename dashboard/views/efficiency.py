"""Whether the offload is worth its memory: prefill saved, net of copies; hits by tier and epoch, and waits."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import causes, efficiency, fleet, memory, text, trends
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.time_range import of_query
from kvtrail.dashboard.views import picker
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.cards import card, cards
from kvtrail.dashboard.views.columns import number
from kvtrail.dashboard.views.filters import choose, filter_bar
from kvtrail.dashboard.views.tables import table
from kvtrail.dashboard.views.theme import is_dark


def filters() -> tuple[str, str]:
    """The engine and the connector; the choices are those of a week."""
    try:
        week = tracer().efficiency(**of_query({"from": "now-7d"}, now_ns=time.time_ns()).query)
    except TracerAway:
        week = {"choices": {"engines": [], "connectors": []}, "engine_names": {}}  # the page below says so
    choices = week["choices"]
    with filter_bar():
        engine = choose("Engine", choices["engines"], name="engine", shown=week["engine_names"])
        connector = choose("Connector", choices["connectors"], name="connector")
    return engine, connector


@st.fragment(run_every=SLOW_S)
def page(engine: str, connector: str) -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()

    def ask() -> tuple[Row, list[Row]]:
        source = tracer()
        return source.efficiency(engine=engine, connector=connector, **shown.query), source.fleet()["engines"]

    answer = read(ask, key=f"efficiency {shown.field()} {engine} {connector}")
    if answer is None:
        return
    savings, engines = answer
    sums = savings["worth"]
    if not sums["lookups"] and not sums["asked"]:
        st.info(
            f"No lookup was traced from {shown.text(now_ns=time.time_ns())}. Choose a longer range, or remove a filter; the"
            " fleet shows whether any engine sends spans at all."
        )
        return
    summary(savings, engines)
    if sentence := fleet.missing_spans([recorder for each in engines for recorder in each["recorders"]]):
        st.warning(f"{sentence} The sums below lack what those spans would have added.")
    token_sources(savings)
    reasons(savings)
    more_memory(savings, engines)
    copies(sums)
    places(savings, {each["engine"]: each["model"] for each in engines})


def summary(savings: Row, engines: list[Row]) -> None:
    """Whether it is worth it, the numbers that say so, how they were calculated, and what they cannot show."""
    sums = savings["worth"]
    level, sentence = efficiency.is_it_worth_it(sums)
    with st.container(key=f"say-{level}-worth"):
        st.markdown(f"**{sentence}** {efficiency.memory(savings, engines)}")
    with cards("small"):
        for each in efficiency.cards(sums):
            card(*each)
    st.caption(
        " ".join(
            filter(None, (efficiency.source_of_savings(sums), efficiency.reconciled(sums), efficiency.limits(sums)))
        )
    )


def token_sources(savings: Row) -> None:
    """Tokens by tier, over time and by epoch."""
    left, right = st.columns([2, 1], gap="medium")
    with left:
        st.subheader("Where the tokens of admitted requests came from", anchor=False)
        picker.chart_over_time(trends.sources_over_time(savings, dark=is_dark()), key="sources")
    with right:
        st.subheader("By epoch", anchor=False, help=TERMS["epoch"])
        st.altair_chart(trends.by_epoch(savings, dark=is_dark()), key="epochs")
        st.caption("vLLM's own metrics count external hits of the first run only.")


def reasons(savings: Row) -> None:
    """Why the other tokens were computed."""
    st.subheader("Why the others were computed", anchor=False, help=TERMS["cause"])
    sentence = causes.largest(savings["worth"])
    if not sentence:
        st.caption(
            "Not recorded: it needs block hashes and vLLM's cache events, which are recorded at level `detailed`"
            " (docs/causes.md)."
        )
        return
    st.markdown(sentence)
    picker.chart_over_time(trends.causes_over_time(savings, dark=is_dark()), key="causes")


def more_memory(savings: Row, engines: list[Row]) -> None:
    """What other sizes of the store would have been worth, for the connector that wanted most."""
    if not savings["memory"]:
        return
    st.subheader("What more memory would buy", anchor=False, help=TERMS["more memory"])
    curve, *others = savings["memory"]
    limit = memory.limit_of(curve, engines)
    rates = {place["engine"]: place["worth"]["prefill_tokens_per_s"] for place in savings["by_place"]}
    hours = savings["step_s"] * len(savings["trend"]) / 3600
    if others:
        name = savings["engine_names"].get(curve["engine"], curve["engine"])
        st.caption(
            f"Of {text.plain(curve['connector'])} in {text.plain(name)}. Choose an engine above to see another one."
        )
    st.markdown(memory.sentences(curve, limit=limit, rate=rates.get(curve["engine"]), hours=hours))
    if curve["points"]:
        st.altair_chart(trends.what_memory_buys(curve, limit=limit, dark=is_dark()), key="memory")
        st.caption(
            "Reckoned for a store that evicts what was used least recently. From a recorded trace, `kvtrail savings` compares"
            " other orders, and tells what none could exceed."
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
    formats = {
        "Hit rate": number("hit rate", format="%.1f %%"),
        "vLLM's own": number("vLLM's own hit rate", format="%.1f %%"),
        "Spared": number("spared tokens"),
        "Saved": number("prefill saved", format="%.2f s"),
        "Held, yet computed": number("held, yet computed"),
        "Unused lookups": number("unused lookups"),
        "Waited": number("waited for KV", format="%.2f s"),
        "Preemptions": number("preemption"),
    }
    table(efficiency.place_rows(savings, models), key="places", formats=formats)
    st.caption(
        "The children of a MultiConnector are asked one after the other, and each counts what it was asked. If the"
        " MultiConnector is traced as well, it alone counts."
    )


picker.heading("Efficiency")
page(*filters())
