"""Compares two requests: why one was slower, and other differences. The URL names both."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.request import compare
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer
from kvtrail.dashboard.views.filters import written
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.request_parts import phases_of, request_badges, unknown_request
from kvtrail.dashboard.views.tables import table

OFFERED = 20


def show(request_id: str, engine: str, query: Mapping[str, str]) -> None:
    """The other request in the URL, or a choice of requests."""
    other = query.get("with", "")
    with st.container(key="ways", horizontal=True, vertical_alignment="center", gap="small"):
        st.header(f"Compare {plain(request_id)} with", width="content", anchor=False)
        written("Compare with", name="with", example="A request's id", clears=["with_engine"])
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

    def ask() -> tuple[Row, list[Row]] | None:
        timeline = tracer().request(request_id, engine=engine)
        if timeline is None:
            return None
        request = timeline["request"]
        return request, tracer().get("requests", limit=OFFERED, near=request["request"], near_engine=request["engine"])

    answer = read(ask, key=f"choose {request_id} {engine}")
    if answer is None:
        unknown_request(plain(request_id))
        return
    request, found = answer
    own = {**request_query(request), "tab": "compare"}
    offers = [each for each in found if request_query(each) != request_query(request)]
    if not offers:
        st.info("There is no other request yet.")
        return
    table(
        compare.offer_rows(offers, request),
        key="offers",
        links=[("request", {**own, "with": offer["request"], "with_engine": offer["engine"]}) for offer in offers],
        note="Near in time and alike. Click one, or type an id.",
        most_rows=OFFERED,
    )


@st.fragment(run_every=EVERY_S)
def page(request_id: str, engine: str, other_id: str, other_engine: str) -> None:
    """Draw the page, again at each refresh."""
    a, b = read(
        lambda: (side(request_id, engine), side(other_id, other_engine)),
        key=f"compare {request_id} {engine} {other_id} {other_engine}",
    )
    if a is None or b is None:
        unknown_request(plain(request_id if a is None else other_id))
        return
    for letter, each, column in zip("AB", (a, b), st.columns(2, gap="large"), strict=True):
        with column, st.container(horizontal=True, vertical_alignment="center", gap="small"):
            name = plain(each.request["external"] or each.request["request"])
            st.subheader(f"{letter}: {name}", width="content", anchor=False)
            request_badges(each.request)
            link("request", f"Open {letter}", icon="arrow_forward", query=request_query(each.request))
    st.subheader("What differs", anchor=False)
    st.markdown(compare.summary(a, b))
    if found := compare.rows(a, b):
        table(found, key="differences")
    else:
        st.success("No difference that matters: durations, answers and outcomes are alike.")


def side(request_id: str, engine: str) -> compare.Side | None:
    """One of the two; None if the tracer does not know it."""
    timeline = tracer().request(request_id, engine=engine)
    return None if timeline is None else compare.Side(timeline, phases_of(timeline))
