"""One request: what was found, its timeline, its account, and every step."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from typing import Any

import streamlit as st

from kvtrail.dashboard import tables, wording
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.command import PLACE, TRACES_VARIABLE
from kvtrail.dashboard.figures import account_chart, timeline_chart
from kvtrail.dashboard.replay import found_at
from kvtrail.dashboard.views.parts import (
    EVERY_S,
    cards,
    finding_card,
    opening_table,
    read,
    tracer,
    unknown_request,
    which_request,
)

BY_TIME, BY_STEP = "time", "steps"
FILES = (
    ("OTLP", "otlp", "jsonl", "application/x-ndjson"),
    ("Perfetto", "perfetto", "perfetto.json", "application/json"),
)
"""What can be taken along: its name, the api's name of it, and its file's ending and type."""


@st.fragment(run_every=EVERY_S)
def page(request_id: str, engine: str, trace_id: str) -> None:
    """Draw the page, again and again: a request that has ended can still get spans that come late."""

    def ask() -> tuple[Row | None, list[Row], list[Row]]:
        traced = [] if request_id else tracer().requests_of_trace(trace_id)
        id_, its_engine = (traced[0]["request"], traced[0]["engine"]) if len(traced) == 1 else (request_id, engine)
        return tracer().request(id_, engine=its_engine) if id_ else None, tracer().fleet()["engines"], traced

    answer = read(ask, key=f"request {request_id} {engine} {trace_id}")
    if answer is None:
        return
    timeline, engines, traced = answer
    if len(traced) > 1:
        choose(traced, trace_id)
    elif timeline is None:
        unknown_request(request_id, trace_id=trace_id)
    else:
        show(timeline, engines)


def choose(requests: list[Row], trace_id: str) -> None:
    """The requests of one trace: a caller's trace may hold several."""
    st.header("Requests of one trace", anchor=False)
    st.caption(f"{wording.some(len(requests), 'request')} of trace {wording.plain(trace_id)}. Click one to open it.")
    shown = ("Request", "Status", "Verdict", "Findings", "Started", "Duration", "Connector")
    rows = tables.request_rows(requests, now_ns=time.time_ns())
    opening_table(
        [{name: row[name] for name in shown} for row in rows],
        key="of_trace",
        opens=[("views/request.py", {"id": r["request"], "engine": r["engine"]}) for r in requests],
        columns={
            "Started": st.column_config.DatetimeColumn("Started (UTC)", format="MM-DD HH:mm:ss.SSS", timezone="UTC"),
            "Duration": st.column_config.NumberColumn("Duration", format="%.3f s"),
        },
        most_rows=16,
    )


def show(timeline: Row, engines: list[Row]) -> None:
    """The request: what was found, its account, its timeline and every step."""
    header(timeline, engines)
    ways_on(timeline["request"])
    steps = {finding["id"]: step for step, found in found_at(timeline).items() for finding in found}
    for finding in timeline["findings"]:
        finding_card(finding, linked=False, step=steps[finding["id"]])
    gauges(timeline["request"])
    charts(timeline)
    st.subheader("Every step", anchor=False)
    st.caption(
        "What each event said, and the request's account after it. Counts are tokens. Click a step to see it in the replay."
    )
    rows = tables.step_rows(timeline)
    whose = {"id": timeline["request"]["request"], "engine": timeline["request"]["engine"]}
    replays = [("views/replay.py", {**whose, "step": str(row["Step"])}) for row in rows]
    opening_table(rows, key="steps", opens=replays, columns=columns(), most_rows=16)


def header(timeline: Row, engines: list[Row]) -> None:
    """Who this is and how it stands; errors and losses before all else."""
    request = timeline["request"]
    now_ns = time.time_ns()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header(f"Request {wording.plain(request['external'] or request['request'])}", width="content", anchor=False)
        st.badge(request["status"], color=wording.STATUS_COLORS.get(request["status"], "gray"))  # type: ignore[arg-type]
        verdict = f"verdict: {request['verdict']}"
        st.badge(verdict, color=wording.VERDICT_COLORS.get(request["verdict"], "gray"))  # type: ignore[arg-type]
    model = next((e["model"] for e in engines if e["engine"] == request["engine"] and e["model"]), "not known")
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


def ways_on(request: Row) -> None:
    """Where one can go from here, and what one can take along."""
    query = {"id": request["request"], "engine": request["engine"]}
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.page_link("views/replay.py", label="Replay", icon=":material/play_arrow:", query_params=query)
        st.page_link("views/compare.py", label="Compare", icon=":material/compare_arrows:", query_params=query)
        if template := os.environ.get(TRACES_VARIABLE, ""):
            address = template.replace(PLACE, request["trace_id"])
            st.page_link(address, label="Trace", icon=":material/open_in_new:", help=address)
        with st.popover("Copy or download", icon=":material/content_copy:", type="tertiary"):
            st.caption("The engine's id of the request")
            st.code(request["request"], language=None)
            st.caption("The trace's id")
            st.code(request["trace_id"], language=None)
            downloads(request)


def downloads(request: Row) -> None:
    """The request as files; they are asked for when somebody wants them."""
    id_, engine = request["request"], request["engine"]

    def as_json() -> str:
        return json.dumps(tracer().request(id_, engine=engine), indent=2)

    st.caption(
        "Its story, and its spans: `kvtrail audit` and any OpenTelemetry tool read the latter. The last one opens in"
        " [ui.perfetto.dev](https://ui.perfetto.dev), which reads it in the browser and sends it nowhere."
    )
    with st.container(horizontal=True):
        st.download_button("JSON", as_json, f"{id_}.json", "application/json", on_click="ignore")
        for name, kind, ending, mime in FILES:
            ask = partial(tracer().file, kind, id_, engine=engine)
            st.download_button(name, ask, f"{id_}.{ending}", mime, on_click="ignore")


def gauges(request: Row) -> None:
    """The account as it stands."""
    values = {
        "Total tokens": request["total"],
        "Computed": request["computed"],
        "Matched": request["matched"],
        "Returned": request["returned"],
        "Allocated": request["allocated"],
        "Loaded": request["loaded"],
        "Stored": request["stored"],
        "Lookups": request["lookups"],
        "Preemptions": request["epoch"],
    }
    with cards("small"):
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
        "Says": st.column_config.TextColumn("Says", width=330),
    }


query = st.query_params
if query.get("id") or query.get("trace"):
    page(query.get("id", ""), query.get("engine", ""), query.get("trace", "").strip().lower())
else:
    which_request("request")
