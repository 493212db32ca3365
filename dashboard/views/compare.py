"""Two requests side by side: accounts, charts, and where their histories first differ; the address names both."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content.charts import account_chart, highest, timeline_chart
from kvtrail.dashboard.content.compare import first_difference, first_other_call, step_rows
from kvtrail.dashboard.content.request import account_rows
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.views import shared, tables

OFFERED = 50


def choose_other(request_id: str, engine: str) -> str:
    """The request to compare with: one of the latest, or any whose id is typed or pasted."""
    named = st.query_params.get("with", "")
    try:
        latest = shared.tracer().requests(limit=OFFERED)
    except TracerAway:
        latest = []  # the page below says so
    ids = [r["request"] for r in latest if (r["request"], r["engine"]) != (request_id, engine)]
    chosen = st.selectbox(
        "Compare with",
        list(dict.fromkeys([*([named] if named else []), *ids])),
        index=0 if named else None,
        placeholder="Choose one of the latest, or paste a request's id",
        accept_new_options=True,
        width=480,
    )
    if chosen and chosen != named:
        st.query_params["with"] = str(chosen)
        st.query_params.pop("with_engine", None)  # it was the other request's
    return str(chosen or "")


@st.fragment(run_every=shared.EVERY_S)
def page(request_id: str, engine: str, other_id: str, other_engine: str) -> None:
    """Draw the page, again at each refresh."""

    def ask() -> tuple[Row | None, Row | None]:
        source = shared.tracer()
        return source.request(request_id, engine=engine), source.request(other_id, engine=other_engine)

    answer = shared.read(ask, key=f"compare {request_id} {engine} {other_id} {other_engine}")
    if answer is None:
        return
    a, b = answer
    if a is None or b is None:
        shared.unknown_request(request_id if a is None else other_id)
        return
    verdict(a, b)
    top = max(highest(a), highest(b))
    # Row by row, so that the same part of both is at the same height.
    for letter, timeline, column in zip("AB", (a, b), st.columns(2, gap="large"), strict=True):
        with column:
            side(letter, timeline)
    for letter, timeline, column in zip("AB", (a, b), st.columns(2, gap="large"), strict=True):
        column.altair_chart(account_chart(timeline, by_step=True, top=top), key=f"account_{letter}")
    st.subheader("Accounts", anchor=False)
    shared.account_table(account_rows(a["request"], b["request"]), headings=("A", "B"), width=480)
    steps(a, b)


def verdict(a: Row, b: Row) -> None:
    """Where they first differ, above all else."""
    difference, other = first_difference(a, b), first_other_call(a, b)
    if difference is None:
        st.success("Both histories are the same: every call says the same.")
        return
    lines = [f"**They first differ:** {plain(difference.sentence)}."]
    if other is None:
        lines.append("Both make the same calls, with other numbers.")
    elif other != difference:
        lines.append(f"**They first make another call:** {plain(other.sentence)}.")
    st.info("\n\n".join(lines))


def side(letter: str, timeline: Row) -> None:
    """One of the two: its name, status and verdict, and its timeline."""
    request = timeline["request"]
    with st.container(horizontal=True, vertical_alignment="center"):
        name = plain(request["external"] or request["request"])
        st.subheader(f"{letter}: {name}", width="content", anchor=False)
        shared.request_badges(request)
    shared.link("request", f"Open {letter}", icon="arrow_forward", query=shared.request_query(request))
    st.altair_chart(timeline_chart(timeline, by_step=True), key=f"timeline_{letter}")


def steps(a: Row, b: Row) -> None:
    """Both histories, step beside step; a click opens A's replay."""
    st.subheader("Step by step", anchor=False)
    st.caption(
        "What vLLM and the connector said about tokens. Block ids, keys and times differ anyway. Click a step of A to replay"
        " it."
    )
    rows = step_rows(a, b)
    tables.table(
        rows,
        key="compare_steps",
        links=[("replay", shared.request_query(a["request"], step=row["A step"] or 1)) for row in rows],
        most_rows=16,
        widths={"": 70, "A step": 65, "A": 440, "B step": 65, "B": 440},
    )


wanted = st.query_params.get("id", "")
if not wanted:
    shared.which_request("compare")
else:
    st.header("Compare two requests", anchor=False)
    wanted_engine = st.query_params.get("engine", "")
    other = choose_other(wanted, wanted_engine)
    if other:
        page(wanted, wanted_engine, other, st.query_params.get("with_engine", ""))
    else:
        st.caption(f"A is {plain(wanted)}. Choose B above: their first difference, charts and accounts follow.")
