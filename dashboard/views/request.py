"""One request: its findings, its account, its timeline, and every step."""

from __future__ import annotations

import json
import os
import time
from functools import partial

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.command import TRACE_ID, TRACES_VARIABLE
from kvtrail.dashboard.content.charts import account_chart, timeline_chart
from kvtrail.dashboard.content.request import findings_by_step, missing_events, step_rows
from kvtrail.dashboard.content.requests import duration_ns, request_rows
from kvtrail.dashboard.content.text import clock, plain
from kvtrail.dashboard.content.unknown import of_request as why_unknown
from kvtrail.dashboard.views import shared, tables
from kvtrail.tracer.model.words import count, duration, some

BY_TIME, BY_STEP = "time", "steps"
FILES = (
    ("OTLP", "otlp", "jsonl", "application/x-ndjson"),
    ("Perfetto", "perfetto", "perfetto.json", "application/json"),
)
"""Downloads: the name, the api's name of it, the file's ending and type."""


@st.fragment(run_every=shared.EVERY_S)
def page(request_id: str, engine: str, trace_id: str) -> None:
    """Draw the page, again at each refresh: even a request that has ended may get late spans."""

    def ask() -> tuple[Row | None, list[Row], list[Row]]:
        of_trace = [] if request_id else shared.tracer().requests_of_trace(trace_id)
        query = {"id": request_id, "engine": engine} if len(of_trace) != 1 else shared.request_query(of_trace[0])
        timeline = shared.tracer().request(query["id"], engine=query["engine"]) if query["id"] else None
        return timeline, shared.tracer().fleet()["engines"], of_trace

    answer = shared.read(ask, key=f"request {request_id} {engine} {trace_id}")
    if answer is None:
        return
    timeline, engines, of_trace = answer
    if len(of_trace) > 1:
        choose(of_trace, trace_id)
    elif timeline is None:
        shared.unknown_request(request_id, trace_id=trace_id)
    else:
        show(timeline, engines)


def choose(requests: list[Row], trace_id: str) -> None:
    """The requests of a trace: a caller's trace may hold several."""
    st.header("Requests of one trace", anchor=False)
    st.caption(f"{some(len(requests), 'request')} of trace {plain(trace_id)}. Click one to open it.")
    shown = ("Request", "Status", "Verdict", "Findings", "Started", "Duration", "Connector")
    tables.table(
        [{name: row[name] for name in shown} for row in request_rows(requests, now_ns=time.time_ns())],
        key="of_trace",
        links=[("request", shared.request_query(request)) for request in requests],
        most_rows=16,
        formats={
            "Started": st.column_config.DatetimeColumn("Started (UTC)", format="MM-DD HH:mm:ss.SSS", timezone="UTC"),
            "Duration": st.column_config.NumberColumn(format="%.3f s"),
        },
    )


def show(timeline: Row, engines: list[Row]) -> None:
    """The request: its findings, account, timeline and steps."""
    request = timeline["request"]
    header(timeline, engines)
    links(request)
    steps = {finding["id"]: step for step, findings in findings_by_step(timeline).items() for finding in findings}
    for finding in timeline["findings"]:
        shared.finding_card(finding, linked=False, step=steps[finding["id"]], request=request)
    names = ("computed", "matched", "returned", "allocated", "loaded", "stored", "lookups")
    with shared.cards("small"):
        shared.card("Total tokens", count(request["total"]))
        for name in names:
            shared.card(name.capitalize(), count(request[name]))
        shared.card("Preemptions", count(request["epoch"]))
    charts(timeline)
    st.subheader("Every step", anchor=False)
    st.caption(
        "What each event said, and the request's account after it. Counts are tokens. Click a step to see it in the replay."
    )
    rows = step_rows(timeline)
    tables.table(
        rows,
        key="steps",
        links=[("replay", shared.request_query(request, step=row["Step"])) for row in rows],
        most_rows=16,
        numbers=("Computed", "Matched", "Loaded", "Stored"),
        widths={"Step": 50, "Witness": 70, "Epoch": 60, "Kind": 88, "Says": 330},
        formats={
            "Since arrival": st.column_config.NumberColumn(format="%.3f ms"),
            "Took": st.column_config.TextColumn(alignment="right", width=75),
        },
    )


def header(timeline: Row, engines: list[Row]) -> None:
    """Which request this is, its status and verdict; errors and missing events above all else."""
    request = timeline["request"]
    now_ns = time.time_ns()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header(f"Request {plain(request['external'] or request['request'])}", width="content", anchor=False)
        shared.request_badges(request)
    model = next((e["model"] for e in engines if e["engine"] == request["engine"] and e["model"]), "not known")
    facts = [
        f"engine's id {request['request']}",
        f"started {clock(request['started_ns'], now_ns=now_ns)} UTC",
        f"lasted {duration(duration_ns(request, now_ns=now_ns))}",
        request["connector"] or "no connector named",
        f"model {model}",
        f"engine {request['engine_name']}",
        f"trace {request['trace_id']}",
    ]
    st.caption(plain(" · ".join(facts)))
    notes = st.container()
    if request["error"]:
        notes.error(f"A call about this request raised. {plain(request['error'])}")
    if sentence := missing_events(timeline):
        notes.warning(sentence)
    if sentence := why_unknown(request):
        notes.info(sentence)


def links(request: Row) -> None:
    """Other views of the request, its ids, and its files."""
    query = shared.request_query(request)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        shared.link("replay", "Replay", icon="play_arrow", query=query)
        shared.link("compare", "Compare", icon="compare_arrows", query=query)
        if template := os.environ.get(TRACES_VARIABLE, ""):
            address = template.replace(TRACE_ID, request["trace_id"])
            st.page_link(address, label="Trace", icon=":material/open_in_new:", help=address)
        with st.popover("Copy or download", icon=":material/content_copy:", type="tertiary"):
            st.caption("The engine's id of the request")
            st.code(request["request"], language=None)
            st.caption("The trace's id")
            st.code(request["trace_id"], language=None)
            downloads(request["request"], request["engine"])


def downloads(request_id: str, engine: str) -> None:
    """The request as files, which are fetched when their button is pressed."""

    def as_json() -> str:
        return json.dumps(shared.tracer().request(request_id, engine=engine), indent=2)

    st.caption(
        "JSON has what this page shows. OTLP has the spans, for `kvtrail audit` and any OpenTelemetry tool. Perfetto opens in"
        " [ui.perfetto.dev](https://ui.perfetto.dev), which reads the file in the browser and sends it nowhere."
    )
    with st.container(horizontal=True):
        st.download_button("JSON", as_json, f"{request_id}.json", "application/json", on_click="ignore")
        for name, kind, ending, mime in FILES:
            fetch = partial(shared.tracer().file, kind, request_id, engine=engine)
            st.download_button(name, fetch, f"{request_id}.{ending}", mime, on_click="ignore")


def charts(timeline: Row) -> None:
    """The timeline above the account, on the same axis."""
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


query = st.query_params
if query.get("id") or query.get("trace"):
    page(query.get("id", ""), query.get("engine", ""), query.get("trace", "").strip().lower())
else:
    shared.which_request("request")
