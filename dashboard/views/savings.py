"""Whether the offload is worth its memory: prefill saved, why the rest was computed, and what more memory would buy."""

from __future__ import annotations

import time
from typing import NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import causes, efficiency, fleet, memory, trends
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.legend import legend, of_colours
from kvtrail.dashboard.content.time_range import of_query
from kvtrail.dashboard.content.waste import CHOSEN
from kvtrail.dashboard.views import address, picker
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.cards import card, cards
from kvtrail.dashboard.views.charts import draw_chart
from kvtrail.dashboard.views.context import is_dark
from kvtrail.dashboard.views.filters import choose, filter_bar
from kvtrail.dashboard.views.tables import number_column, table
from kvtrail.dashboard.views.wasted import wasted


class Answer(NamedTuple):
    """The data of the page, queried together."""

    savings: Row
    engines: list[Row]
    markers: list[Row]
    waste: Row


def filters() -> dict[str, str]:
    """The filters by engine, connector and model, as the API's parameters; their choices are those of a week."""
    try:
        week = tracer().efficiency(**of_query({"from": "now-7d"}, now_ns=time.time_ns()).query)
    except TracerAway:
        week = {"choices": {}, "engine_names": {}}  # the page below shows the error
    choices = week["choices"]
    with filter_bar():
        return {
            "engine": choose("Engine", choices.get("engines", []), name="on", shown=week["engine_names"]),
            "connector": choose("Connector", choices.get("connectors", []), name="connector"),
            "model": choose("Model", choices.get("models", []), name="model"),
        }


@st.fragment(run_every=SLOW_S)
def page(filters: dict[str, str]) -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()
    narrowed = {name: value for name in CHOSEN if (value := address.query().get(name, ""))}
    own = {name: value for name, value in filters.items() if name != "connector"}  # markers and waste are of engines

    def ask() -> Answer:
        source = tracer()
        return Answer(
            savings=source.efficiency(**filters, **shown.query),
            engines=source.fleet()["engines"],
            markers=source.markers(**own, **shown.query),
            waste=source.waste(**own, **narrowed, **shown.query),
        )

    answer = read(ask, key=f"savings {shown.field()} {filters} {narrowed}", again_s=picker.again_s(SLOW_S))
    if answer is None:
        return
    savings, sums = answer.savings, answer.savings["worth"]
    if narrowed:
        wasted(answer.waste, filters, narrowed)
        return
    if not sums["lookups"] and not sums["asked"]:
        st.info(
            f"No lookup was traced from {shown.text(now_ns=time.time_ns())}. Choose a longer range, or remove a filter; the"
            " overview shows which engines send spans."
        )
        return
    _summary(savings, answer.engines)
    if sentence := fleet.missing_spans([recorder for each in answer.engines for recorder in each["recorders"]]):
        st.warning(f"{sentence} The sums below do not include them.")
    _sources(savings, answer.markers)
    models = {each["engine"]: each["model"] for each in answer.engines}
    _reasons(savings, models, answer.markers)
    wasted(answer.waste, filters, narrowed)
    _more_memory(savings, answer.engines)
    _places(savings, models)
    _counters(sums)


def _summary(savings: Row, engines: list[Row]) -> None:
    """Whether it is worth it: the verdict, its numbers, their calculation and their limits."""
    sums = savings["worth"]
    level, sentence = efficiency.verdict(savings, engines)
    more = [
        efficiency.without_savings(savings),
        memory.better_of(savings, engines),
        efficiency.memory(savings, engines),
    ]
    with st.container(key=f"say-{level}-worth"):
        st.markdown(f"**{sentence}** {' '.join(filter(None, more))}")
    with cards():
        for each in efficiency.cards(sums):
            card(*each)
    st.caption(" ".join(filter(None, (efficiency.source_of_savings(sums), efficiency.limits(sums)))))


def _sources(savings: Row, marked: list[Row]) -> None:
    """Tokens by tier, over time."""
    st.subheader("Where the tokens of admitted requests came from", anchor=False)
    st.html(of_colours(trends.source_colours(savings, dark=is_dark())))
    picker.chart_over_time(trends.sources_over_time(savings, dark=is_dark()), marked, key="sources")


def _reasons(savings: Row, models: dict[str, str], marked: list[Row]) -> None:
    """The causes of computed tokens: over time, and by engine, connector, model, tenant and KV cache group."""
    st.subheader("Why the others were computed", anchor=False, help=TERMS["cause"])
    sentence = causes.reasons(savings["worth"])
    if not sentence:
        st.caption(
            "Nothing was computed, by what is recorded."
            if savings["worth"]["causes"]
            else "Not recorded: it needs block hashes and vLLM's cache events, which are recorded at level `detailed`"
            " (docs/causes.md)."
        )
        return
    st.markdown(sentence)
    st.html(legend(causes.sum_names(savings["worth"], dark=is_dark())))
    left, right = st.columns([2, 1], gap="medium")
    with left:
        picker.chart_over_time(trends.causes_over_time(savings, dark=is_dark()), marked, key="causes")
    with right:
        groups = causes.groups(savings, models)
        chosen = st.selectbox("Grouped by", list(groups), key="causes_by", bind="query-params")
        draw_chart(trends.causes_by(groups[chosen], dark=is_dark()), key="causes_by_chart")


def _more_memory(savings: Row, engines: list[Row]) -> None:
    """What other sizes of the store would have been worth, for the connector with most to gain."""
    st.subheader("What more memory would buy", anchor=False, help=TERMS["more memory"])
    curve = memory.most_to_gain(savings)
    if curve is None:
        st.caption(
            "Not estimated: it needs the hashes of prompts' blocks, which are recorded at level `detailed` with"
            " `block_hashes: on`."
        )
        return
    limit, given = memory.limit_of(curve, engines), memory.given_of(curve, savings)
    sums = memory.sums_of(curve, savings) or {}
    hours = savings["step_s"] * len(savings["trend"]) / 3600
    if place := memory.place(curve, savings):
        st.caption(f"Of {place}, where another size would change most. Choose another engine above.")
    st.markdown(
        memory.sentences(
            curve,
            limit=limit,
            rate=sums.get("prefill_tokens_per_s"),
            hours=hours,
            given=given,
            causes=sums.get("causes"),
            is_gone=memory.is_gone(curve, engines),
        )
    )
    if curve["points"]:
        draw_chart(trends.what_memory_buys(curve, limit=limit, given=given, dark=is_dark()), key="memory")
        dot = "; the dot is this store's measured share" if memory.today(curve, limit) else ""
        st.caption(
            f"The line is an estimate for a store with LRU eviction{dot}."
            " `kvtrail audit --savings` makes the same of a recorded trace."
            f"{memory.counted_since(curve)}"
        )


def _places(savings: Row, models: dict[str, str]) -> None:
    """Engines and connectors side by side."""
    st.subheader("By engine and connector", anchor=False)
    formats = {
        "Hit rate": number_column("hit rate", format="%.1f %%"),
        "vLLM's own": number_column("vLLM's own hit rate", format="%.1f %%"),
        "Spared": number_column("spared tokens"),
        "Saved": number_column("prefill saved", format="%.2f s"),
        "Held, yet computed": number_column("held, yet computed"),
        "Unused lookups": number_column("unused lookups"),
        "Waited": number_column("waited for KV", format="%.2f s"),
        "Preemptions": number_column("preemption"),
    }
    table(efficiency.place_rows(savings, models), key="places", formats=formats)
    st.caption(
        "A MultiConnector asks its children one after the other; each counts the tokens it was asked for. If the"
        " MultiConnector is traced as well, only it counts."
    )


def _counters(sums: Row) -> None:
    """Loads and stores, and vLLM's own counters beside kvtrail's."""
    with st.expander("Loads and stores, and vLLM's own counters"):
        if sums["load_tokens"] or sums["store_tokens"]:
            st.table(efficiency.copy_rows(sums), border="horizontal", hide_index=True)
            st.caption("Bandwidth is that of one rank while it copies; it is unknown if no bytes are reported.")
        else:
            st.caption("No worker reported a copy. Some connectors show copies only in their plans.")
        if sentence := efficiency.reconciled(sums):
            st.table(efficiency.counter_rows(sums), border="horizontal", hide_index=True)
        else:
            sentence = "Not compared: this vLLM reports no counts for single requests, or no request has begun to run."
        st.caption(f"{sentence} {efficiency.accounted(sums)}")


picker.heading("Savings")
page(filters())
