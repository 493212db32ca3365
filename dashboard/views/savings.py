"""Whether the offload is worth its memory: saved prefill, causes of computed tokens, and the estimated effect of more
memory."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import causes, charts, engines, memory, savings, waste
from kvtrail.dashboard.content.legend import legend
from kvtrail.dashboard.content.requests import as_address
from kvtrail.dashboard.glossary import TERMS
from kvtrail.dashboard.views import address, picker
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer, unless_away
from kvtrail.dashboard.views.charts import chart_over_time, draw_chart, is_dark, sources_chart
from kvtrail.dashboard.views.filters import choose, filter_bar
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.tables import cards, table


def filters() -> dict[str, str]:
    """The filters by engine, connector and model, as the API's parameters."""
    answer = unless_away(lambda: tracer().get("efficiency", **picker.current().query), {})
    found = answer.get("choices", {})
    with filter_bar():
        return {
            "engine": choose("Engine", found.get("engines", []), name="on", shown=answer.get("engine_names")),
            "connector": choose("Connector", found.get("connectors", []), name="connector"),
            "model": choose("Model", found.get("models", []), name="model"),
        }


def page(filters: dict[str, str]) -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()
    narrowed = {name: value for name in waste.CHOSEN if (value := address.query().get(name, ""))}
    own = {name: value for name, value in filters.items() if name != "connector"}  # markers and waste belong to engines

    def ask() -> Row:
        get, query = tracer().get, shown.query
        return {
            "savings": get("efficiency", **filters, **query),
            "engines": get("fleet")["engines"],
            "markers": get("markers", **own, **query),
            "waste": get("waste", **own, **narrowed, **query),
        }

    answer = read(ask, key=f"savings {shown.field()} {filters} {narrowed}")
    if narrowed:
        _wasted(answer["waste"], filters, narrowed)
        return
    sums = answer["savings"]["worth"]
    if not sums["lookups"] and not sums["asked"]:
        st.info(
            f"No lookup was traced from {shown.field()}. Choose a longer range, or remove a filter; the"
            " overview shows which engines send spans."
        )
        return
    curve = memory.most_to_gain(answer["savings"], answer["engines"])
    _summary(answer["savings"], answer["engines"], curve)
    if sentence := engines.missing_spans([recorder for each in answer["engines"] for recorder in each["recorders"]]):
        st.warning(f"{sentence} The sums below do not include them.")
    st.subheader("Where the tokens of admitted requests came from", anchor=False)
    sources_chart(answer["savings"], answer["markers"])
    models = {each["engine"]: each["model"] for each in answer["engines"]}
    _reasons(answer["savings"], models, answer["markers"])
    _wasted(answer["waste"], filters, narrowed)
    _more_memory(curve)
    st.subheader("By engine and connector", anchor=False)
    table(savings.place_rows(answer["savings"], models), key="places")
    st.caption(
        "A MultiConnector asks its children one after the other; each counts the tokens it was asked for. If the"
        " MultiConnector is traced as well, only it counts."
    )
    if sums["load_tokens"] or sums["store_tokens"]:
        st.subheader("Loads and stores", anchor=False, help=TERMS["bandwidth"])
        table(savings.copy_rows(sums), key="copies")


def _summary(answer: Row, listed: list[Row], curve: Row | None) -> None:
    """Whether the offload is worth it: the verdict, its numbers, their calculation and their limits."""
    sums = answer["worth"]
    level, sentence = savings.verdict(answer, listed)
    more = ["" if curve is None else memory.better(curve), savings.memory_held(answer, listed)]
    with st.container(key=f"say-{level}-worth"):
        st.markdown(f"**{sentence}** {' '.join(filter(None, more))}")
    cards(savings.cards(sums))
    st.caption(" ".join(filter(None, (savings.source_of_savings(sums), savings.limits(sums)))))


def _reasons(answer: Row, models: dict[str, str], marked: list[Row]) -> None:
    """The causes of computed tokens: over time, and by engine, connector, model, tenant and KV cache group."""
    sums = answer["worth"]
    st.subheader("Why tokens were computed", anchor=False, help=TERMS["cause"])
    if not (sentence := " ".join(filter(None, (causes.largest(sums), causes.unknown(sums))))):
        st.caption(
            "Nothing was computed, by what is recorded."
            if sums["causes"]
            else "Not recorded: it needs block hashes and vLLM's cache events, which are recorded at level `detailed`"
            " (docs/causes.md)."
        )
        return
    st.markdown(sentence)
    st.html(legend(causes.sum_names(sums, dark=is_dark())))
    left, right = st.columns([2, 1], gap="medium")
    with left:
        chart_over_time(charts.causes_over_time(answer, dark=is_dark()), marked, key="causes")
    with right:
        groups = causes.groups(answer, models)
        chosen = st.selectbox("Grouped by", list(groups), key="causes_by", bind="query-params")
        draw_chart(charts.causes_by(groups[chosen], dark=is_dark()), key="causes_by_chart")


def _wasted(answer: Row, filters: Mapping[str, str], narrowed: Mapping[str, str]) -> None:
    """Tokens that were computed although a cache had held them: the most expensive prefixes, and their tenants. If a click
    on a row has `narrowed` them down to one group, also its requests."""
    st.subheader("Tokens computed although a cache had held them", anchor=False)
    given = {name: value for name, value in filters.items() if value}
    query = {**picker.current().address, **as_address(given)}
    if narrowed:
        link("savings", waste.narrowed_to(answer, narrowed), icon="filter_alt_off", query=query)
    st.markdown(waste.sentence(answer))
    if not answer["whole"]["tokens"]:
        return
    if narrowed:
        table(
            waste.request_rows(answer),
            key="waste_requests",
            links=[("request", request_query(each)) for each in answer["requests"]],
            ids=[(each["engine"], each["request"], each["prefix"]) for each in answer["requests"]],
            note="The requests that computed most again. Click one to see the cause of each part of its prompt.",
            most_rows=20,
        )
    query |= narrowed
    if rows := waste.prefix_rows(answer):
        note = (
            "The most expensive prefixes, each named by the hash of the first block that was lost: prompts that begin alike"
            " and lose the same beginning share it. Click a row to see its requests."
        )
        table(rows, key="waste_prefixes", links=waste.narrowed(answer, "prefix", query), note=note, most_rows=8)
    else:
        st.caption("By which prefix is not known: the hashes of these prompts' blocks are not recorded.")
    links = waste.narrowed(answer, "tenant", query)
    table(
        waste.tenant_rows(answer),
        key="waste_tenant",
        links=links,
        note="Tenants, the most tokens first.",
        most_rows=8,
    )


def _more_memory(curve: Row | None) -> None:
    """The estimated effect of other store sizes, for the connector with the largest gain."""
    st.subheader("What more memory would buy", anchor=False, help=TERMS["more memory"])
    if curve is None:
        st.caption(
            "Not estimated: it needs the hashes of prompts' blocks, which are recorded at level `detailed` with"
            " `block_hashes: on`."
        )
        return
    if curve["place"]:
        st.caption(f"Of {curve['place']}, where another size would change most. Choose another engine above.")
    st.markdown(memory.sentences(curve))
    if curve["points"]:
        draw_chart(charts.what_memory_buys(curve, dark=is_dark()), key="memory")
        dot = "; the dot is this store's measured share" if curve["held"] else ""
        st.caption(
            f"The line is an estimate for a store with LRU eviction{dot}."
            " `kvtrail audit --savings` makes the same of a recorded trace."
            f"{memory.counted_since(curve)}"
        )


picker.heading("Savings")
st.fragment(page, run_every=picker.every_s(SLOW_S))(filters())
