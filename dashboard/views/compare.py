"""A request beside another one: why one was slower, and what else differs. The address names both."""

from __future__ import annotations

import time
from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.request import compare, phases
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.table.columns import Column
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.address import set_to, when_chosen
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.request_parts import request_badges, unknown_request
from kvtrail.dashboard.views.tables import table

OFFERED = 20
RATE_NS = 30 * 60 * 10**9
"""An engine's prefill rate is that of this long before and after a request."""
WIDE = {name: Column(width=480) for name in "AB"}
FIELD = "compare_with"
"""The session's key for the field."""


def show(request_id: str, engine: str, query: Mapping[str, str]) -> None:
    """The other request that the address names, or those to choose from."""
    other = query.get("with", "")
    with st.container(key="ways", horizontal=True, vertical_alignment="center", gap="small"):
        st.header(f"Compare {plain(request_id)} with", width="content", anchor=False)
        field(other)
        if other:
            near = {"id": request_id, "engine": engine, "tab": "compare"}
            link("request", "Near in time and alike", icon="arrow_back", query=near)
    if other:
        page(request_id, engine, other, query.get("with_engine", ""))
    else:
        choose(request_id, engine)


@st.fragment(run_every=EVERY_S)
def choose(request_id: str, engine: str) -> None:
    """The requests to compare with: similar ones near in time."""

    def ask() -> tuple[Row | None, list[Row]]:
        timeline = tracer().request(request_id, engine=engine)
        if timeline is None:
            return None, []
        request = timeline["request"]
        return request, tracer().get("requests", limit=OFFERED, near=request["request"], near_engine=request["engine"])

    answer = read(ask, key=f"choose {request_id} {engine}")
    if answer is None:
        return
    request, found = answer
    if request is None:
        unknown_request(plain(request_id))
        return
    offers = [each for each in found if request_query(each) != request_query(request)]
    if not offers:
        st.info("There is no other request yet.")
        return
    table(
        compare.offer_rows(offers, request),
        key="offers",
        links=[("request", pair_query(request, offer)) for offer in offers],
        note="Near in time and alike. Click one, or type an id.",
        most_rows=OFFERED,
    )


@st.fragment(run_every=EVERY_S)
def page(request_id: str, engine: str, other_id: str, other_engine: str) -> None:
    """Draw the page, again at each refresh."""

    def ask() -> list[compare.Side | None]:
        return [side(request_id, engine), side(other_id, other_engine)]

    answer = read(ask, key=f"compare {request_id} {engine} {other_id} {other_engine}")
    if answer is None:
        return
    a, b = answer
    if a is None or b is None:
        unknown_request(plain(request_id if a is None else other_id))
        return
    heads(a, b)
    slower_phases(a, b)
    verdict(a, b)


def side(request_id: str, engine: str) -> compare.Side | None:
    """One of the two; None if the tracer does not know it."""
    timeline = tracer().request(request_id, engine=engine)
    if timeline is None:
        return None
    request = timeline["request"]
    lanes = tracer().get("lanes", **phases.question(request, now_ns=time.time_ns()))
    around = {"since_ns": max(0, request["started_ns"] - RATE_NS), "until_ns": request["last_ns"] + RATE_NS}
    rate = tracer().get("efficiency", engine=request["engine"], **around)["worth"]["prefill_tokens_per_s"]
    return compare.Side(timeline, phases.stretches(lanes, request), rate)


def heads(a: compare.Side, b: compare.Side) -> None:
    """The two requests: names, badges and links."""
    for letter, each, column in zip("AB", (a, b), st.columns(2, gap="large"), strict=True):
        with column, st.container(horizontal=True, vertical_alignment="center", gap="small"):
            name = plain(each.request["external"] or each.request["request"])
            st.subheader(f"{letter}: {name}", width="content", anchor=False)
            request_badges(each.request)
            link("request", f"Open {letter}", icon="arrow_forward", query=request_query(each.request))


def slower_phases(a: compare.Side, b: compare.Side) -> None:
    """Which of the two was slower, in which phases, and why."""
    sentence = compare.slower_summary(a, b)
    if not sentence:
        return
    st.subheader("Why was one slower", anchor=False)
    st.markdown(sentence)
    table(compare.slower_rows(a, b), key="slower")


def verdict(a: compare.Side, b: compare.Side) -> None:
    """The differences, the most important first."""
    st.subheader("What differs", anchor=False)
    found = compare.differences(a, b)
    if not found:
        st.success("Nothing else that matters: both were answered and ended alike.")
        return
    rows = [{"": each.name, "A": each.a.text, "B": each.b.text} for each in found]
    links = []
    for each in found:
        side, step = (a, each.a.step) if each.a.step or not each.b.step else (b, each.b.step)
        links.append(("request", request_query(side.request, step=step)))
    table(
        rows,
        key="differences",
        links=links,
        ids=[each.name for each in found],
        appends=True,
        note="Outcomes and answers first, lengths last. Click a line to see its step.",
        looks=WIDE,
    )


def pair_query(a: Row, b: Row) -> dict[str, str]:
    """The address that names both."""
    return {**request_query(a), "tab": "compare", "with": b["request"], "with_engine": b["engine"]}


def field(shown: str) -> None:
    """The field for the other request's id."""
    set_to(FIELD, shown)

    def typed() -> None:
        address.change({"with": str(st.session_state[FIELD]).strip(), "with_engine": ""})

    st.text_input(
        "Compare with",
        key=FIELD,
        on_change=when_chosen(FIELD, typed),
        type="search",
        placeholder="A request's id",
        label_visibility="collapsed",
        width=380,
    )
