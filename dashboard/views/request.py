"""One request: what was found, its timeline, its account, and every step."""

from __future__ import annotations

import time
from typing import Any

import streamlit as st

from dashboard import tables, wording
from dashboard.client import Row
from dashboard.figures import account_chart, timeline_chart
from dashboard.replay import found_at
from dashboard.views.parts import EVERY_S, finding_card, read, tracer, unknown_request, which_request

BY_TIME, BY_STEP = "time", "steps"


@st.fragment(run_every=EVERY_S)
def page(request_id: str, engine: str) -> None:
    """Draw the page, again and again: a request that has ended can still get spans that come late."""

    def ask() -> tuple[Row | None, list[Row]]:
        return tracer().request(request_id, engine=engine), tracer().health()["recorders"]

    answer = read(ask, key=f"request {request_id} {engine}")
    if answer is None:
        return
    timeline, recorders = answer
    if timeline is None:
        unknown_request(request_id)
        return
    header(timeline, recorders)
    steps = {finding["id"]: step for step, found in found_at(timeline).items() for finding in found}
    for finding in timeline["findings"]:
        finding_card(finding, linked=False, step=steps[finding["id"]])
    gauges(timeline["request"])
    charts(timeline)
    st.subheader("Every step", anchor=False)
    st.caption("What each event said, and the request's account after it. Counts are tokens.")
    rows = tables.step_rows(timeline)
    st.dataframe(
        rows,
        key="steps",
        hide_index=True,
        height=min(38 + 35 * len(rows), 600),
        column_config=columns(),
        placeholder=wording.NOTHING,
    )


def header(timeline: Row, recorders: list[Row]) -> None:
    """Who this is and how it stands; errors and losses before all else."""
    request = timeline["request"]
    now_ns = time.time_ns()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header(f"Request {wording.plain(request['external'] or request['request'])}", width="content", anchor=False)
        st.badge(request["status"], color=wording.STATUS_COLORS.get(request["status"], "gray"))  # type: ignore[arg-type]
        verdict = f"verdict: {request['verdict']}"
        st.badge(verdict, color=wording.VERDICT_COLORS.get(request["verdict"], "gray"))  # type: ignore[arg-type]
        query = {"id": request["request"], "engine": request["engine"]}
        st.page_link("views/replay.py", label="Replay", icon=":material/play_arrow:", query_params=query)
    # Known only of engines heard since the tracer started.
    model = next((r["model"] for r in recorders if r["engine"] == request["engine"] and r["model"]), "not known")
    facts = [
        f"engine's id {request['request']}",
        f"started {wording.clock(request['started_ns'], now_ns=now_ns)} UTC",
        f"lasted {wording.duration(tables.lasted_ns(request, now_ns=now_ns))}",
        request["connector"] or "no connector named",
        f"model {model}",
        f"engine {request['engine'][:8]}",
        f"trace {request['trace_id']}",
    ]
    st.caption(wording.plain(" · ".join(facts)))
    notes = st.container()
    if request["error"]:
        notes.error(f"A call about this request raised. {wording.plain(request['error'])}")
    if sentence := tables.gaps(timeline):
        notes.warning(sentence)


def gauges(request: Row) -> None:
    """The account as it stands."""
    values = {
        "Total tokens": request["total"],
        "Computed": request["computed"],
        "Matched": request["matched"],
        "Returned": request["returned"],
        "Loaded": request["loaded"],
        "Stored": request["stored"],
        "Lookups": request["lookups"],
        "Preemptions": request["epoch"],
    }
    with st.container(horizontal=True, gap="small"):
        for name, value in values.items():
            st.metric(name, wording.count(value), border=True)


def charts(timeline: Row) -> None:
    """The timeline above the account, over the same axis."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.subheader("Timeline", width="content", anchor=False)
        axis = st.segmented_control(
            "Axis", (BY_TIME, BY_STEP), default=BY_TIME, key="axis", bind="query-params", required=True,
            label_visibility="collapsed",
        )  # fmt: skip
    by_step = axis == BY_STEP
    st.altair_chart(timeline_chart(timeline, by_step=by_step), key=f"timeline_{axis}")
    legend = []
    if timeline["findings"]:
        legend.append("Red diamonds are the witnesses of the findings above.")
    if any(step["error"] for step in timeline["steps"]):
        legend.append("A red cross is a call that raised.")
    if any(step["foreign"] for step in timeline["steps"]):
        legend.append("Grey spans are other services', such as vLLM's own.")
    st.caption(" ".join(legend) or "One row for each kind of event.")
    st.subheader("Account, in tokens", anchor=False)
    st.altair_chart(account_chart(timeline, by_step=by_step), key=f"account_{axis}")


def columns() -> dict[str, Any]:
    """How the columns look."""
    numbers = ("Computed", "Matched", "Loaded", "Stored")
    return {
        **{name: st.column_config.NumberColumn(name, format="localized") for name in numbers},
        "Step": st.column_config.NumberColumn("Step", width=50),
        "Witness": st.column_config.TextColumn("Witness", width=70),
        "Epoch": st.column_config.NumberColumn("Epoch", width=60),
        "Kind": st.column_config.TextColumn("Kind", width=88),
        "Since arrival": st.column_config.NumberColumn("Since arrival", format="%.3f ms"),
        "Took": st.column_config.TextColumn("Took", alignment="right", width=75),
        "Says": st.column_config.TextColumn("Says", width=370),
    }


wanted = st.query_params.get("id", "")
if wanted:
    page(wanted, st.query_params.get("engine", ""))
else:
    which_request("request")
