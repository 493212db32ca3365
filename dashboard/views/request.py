"""One request: what happened and what to do; its causes, timeline, account and steps. Its replay, a comparison with another
request, and the other engine of a hand-off are tabs."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from typing import NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.command import TRACE_ID, TRACES_VARIABLE
from kvtrail.dashboard.content import causes, engine_end, pair, palette, phases, refresh, request_charts, tokens
from kvtrail.dashboard.content.blocks import latest_allocation
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.legend import Entry, bar, legend
from kvtrail.dashboard.content.request import (
    STEP_MEASURES,
    facts,
    findings_by_step,
    handoffs,
    missing_events,
    step_rows,
)
from kvtrail.dashboard.content.requests import duration_ns, request_rows
from kvtrail.dashboard.content.text import clock, plain
from kvtrail.dashboard.content.unknown import of_request as why_unknown
from kvtrail.dashboard.table.columns import DURATION, Lengths, Moments, Numbers
from kvtrail.dashboard.views import address, compare, replay, tables
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer
from kvtrail.dashboard.views.cards import card, cards
from kvtrail.dashboard.views.charts import draw_chart
from kvtrail.dashboard.views.context import is_dark
from kvtrail.dashboard.views.filters import switch
from kvtrail.dashboard.views.finding_cards import request_finding_cards
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.request_parts import BY_STEP, axis_switch, block_table, request_badges, unknown_request
from kvtrail.dashboard.views.tables import request_labels, text_column
from kvtrail.tracer.model.cause_words import headline
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.model.words import count, duration, run, some

TABS = {"story": "What happened", "replay": "Replay", "compare": "Compare"}
HANDOFF = {"handoff": "Other engine"}
MAX_SUMS = 3
"""Sums shown number by number."""
MAX_PAIRS = 3
"""Hand-offs shown with the request on the other side."""
MAX_ADMISSIONS = 3
"""Admissions shown outside of the expander."""


class Answer(NamedTuple):
    """The data of a tab, queried together.

    Attributes:
        end: the marker of the end of its engine, where that cut it off.
    """

    timeline: Row | None
    parts: list[phases.Stretch]
    pairs: list[pair.Pair]
    end: Row | None


@st.fragment(run_every=EVERY_S)
def page(request_id: str, engine: str, tab: str, trace_id: str) -> None:
    """Draw the page at each refresh: even a request that has ended may get late spans, for a while. Once the trace that the
    address names has others, these are listed."""

    def ask() -> Answer:
        if trace_id and len(tracer().requests_of_trace(trace_id)) > 1:
            st.rerun()
        timeline = tracer().request(request_id, engine=engine)
        parts = phases_of(timeline) if tab != "replay" else []
        pairs = pairs_of(timeline, parts) if tab == "handoff" else []
        return Answer(timeline, parts, pairs, end_of_engine(timeline) if tab == "story" else None)

    def again_s(answer: Answer) -> float | None:
        if answer.timeline is None or trace_id:  # others may come
            return EVERY_S
        shown = [answer.timeline, *(side for each in answer.pairs for side in (each.given, each.taken))]
        return refresh.of_requests([each["request"] for each in shown], now_ns=time.time_ns())

    answer = read(ask, key=f"request {request_id} {engine} {tab}", again_s=again_s)
    if answer is None:
        return
    if answer.timeline is None:
        unknown_request(f"{plain(request_id)}, by its engine's or its external id")
        return
    header(answer.timeline["request"])
    if tab == "replay":
        replay.show(answer.timeline)
    elif tab == "handoff":
        handoff_links(answer.timeline)
        for number, each in enumerate(answer.pairs):
            both_engines(each, number, is_alone=len(answer.pairs) == 1)
    else:
        show(answer.timeline, answer)


@st.fragment(run_every=EVERY_S)
def of_trace(trace_id: str) -> None:
    """The requests of a trace; a caller's trace may have several."""
    answer = read(lambda: tracer().requests_of_trace(trace_id), key=f"trace {trace_id}")
    if answer is None:
        return
    if len(answer) == 1:
        st.rerun()  # its spans were still on their way
    if not answer:
        unknown_request(f"of trace {plain(trace_id)}")
        return
    st.header("Requests of one trace", anchor=False)
    shown = ("Request", "Status", "Verdict", "Findings", "Started", "Duration", "Connector")
    tables.table(
        [{name: row[name] for name in shown} for row in request_rows(answer, now_ns=time.time_ns())],
        key="of_trace",
        links=[("request", request_query(request)) for request in answer],
        note=f"{some(len(answer), 'request')} of trace {plain(trace_id)}. Click one to open it.",
        most_rows=16,
        formats={
            **request_labels(),
            "Started": Moments(label="Started (UTC)", format="%m-%d %H:%M:%S.%f"),
            "Duration": Numbers(format="%.3f s"),
        },
    )


def show(timeline: Row, answer: Answer) -> None:
    """What happened, in sentences first; then the sources of its tokens, its time, and its steps."""
    request = timeline["request"]
    what_happened(timeline, answer)
    steps = {finding["id"]: step for step, findings in findings_by_step(timeline).items() for finding in findings}
    request_finding_cards(timeline["findings"], timeline, steps=steps)
    token_sums(timeline)
    causes_of(timeline)
    charts(timeline, answer.parts)
    if shown := facts(request):
        with cards():
            for name, value, note, term in shown:
                card(name, value, note, term)
    if (allocation := latest_allocation(timeline)) is not None:
        block_table(allocation, timeline, title="Its block tables, at the latest allocation")
    st.subheader("Every step", anchor=False)
    rows = step_rows(timeline)
    longest = max((row["To next"] or 0.0 for row in rows), default=0.0) or 1.0
    tables.table(
        rows,
        key="steps",
        links=[("request", request_query(request, step=row["Step"])) for row in rows],
        note="Each event, and the request's account after it, in tokens. Click a step to see it in the replay.",
        appends=True,
        most_rows=16,
        numbers=STEP_MEASURES.values(),
        widths={"Step": 50, "Proof": 55, "Kind": 95, "Says": 330, "Preemptions": 95, "Status": 85},
        formats={
            "Since arrival": Numbers(format=DURATION),
            "To next": Lengths(format=DURATION, most=longest, width=130, help=TERMS["to next"]),
            "Took": text_column("took", right=True, width=75),
        },
    )


def token_sums(timeline: Row) -> None:
    """The sources of its tokens: a sum for each admission."""
    st.subheader("Where its tokens came from", anchor=False)
    admissions = tokens.admissions(timeline)
    if not admissions:
        st.caption("Not known: its first step is not recorded, or has not arrived yet.")
        return
    shown, rest = admissions[:MAX_SUMS], admissions[MAX_SUMS:]
    for admission, column in zip(shown, st.columns(max(2, len(shown)), gap="large"), strict=False):
        with column:
            token_sum(admission)
    for admission in rest:
        st.caption(f"{run(admission.epoch).capitalize()}: {tokens.sum_line(admission)}")


def token_sum(admission: tokens.Admission) -> None:
    """A sum, number by number, with a bar of its parts."""
    whole, term = (f"After preemption {admission.epoch}", "asked again") if admission.epoch else ("Prompt", "prompt")
    parts = tokens.parts(admission)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key=f"sum-{admission.epoch}"):
        st.metric(whole, count(admission.asked), width="content", help=TERMS[term])
        for sign, (name, number, explained) in zip("=++", parts, strict=True):
            st.markdown(f"&#{ord(sign)};", width="content")
            st.metric(name, number, width="content", help=TERMS[explained])
    colours = palette.colours(palette.SOURCE, dark=is_dark()).values()
    st.html(bar([Entry(name, colour) for (name, *_), colour in zip(parts, colours, strict=True)], admission.parts))


def causes_of(timeline: Row) -> None:
    """Why each token was reused or computed, by admission; nothing where no causes were recorded."""
    admissions = timeline["request"].get("causes") or []
    if not admissions:
        return
    st.subheader("Why each token was a hit or none", anchor=False, help=TERMS["cause"])
    st.caption("Each part links to its explanation: the step, the other request, or that moment among the *Lanes*.")
    for admission in admissions[:MAX_ADMISSIONS]:
        admission_causes(admission, timeline, is_alone=len(admissions) == 1)
    if rest := admissions[MAX_ADMISSIONS:]:
        with st.expander(f"{len(rest)} more admissions after preemptions"):
            for admission in rest:
                admission_causes(admission, timeline, is_alone=False)


def admission_causes(admission: Row, timeline: Row, *, is_alone: bool) -> None:
    """One admission: its headline, its legend, and a bar of its prompt with links as parts."""
    epoch = "" if is_alone else f"{run(admission['epoch']).capitalize()}: "
    st.markdown(f"{epoch}{headline(admission)}")
    dark = is_dark()
    st.html(legend(causes.names(admission, dark=dark)))
    st.html(causes.waterfall(admission, timeline, dark=dark))


def header(request: Row) -> None:
    """The request's name, status and verdict, its ids and files."""
    now_ns = time.time_ns()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.header(f"Request {plain(request['external'] or request['request'])}", width="content", anchor=False)
        request_badges(request)
        if template := os.environ.get(TRACES_VARIABLE, ""):
            traces = template.replace(TRACE_ID, request["trace_id"])
            st.page_link(traces, label="Trace", icon=":material/open_in_new:", help=traces)
        with st.popover("Copy or download", icon=":material/content_copy:", type="tertiary"):
            st.caption("The engine's id of the request")
            st.code(request["request"], language=None)
            st.caption("The trace's id")
            st.code(request["trace_id"], language=None)
            downloads(request["request"], request["engine"])
    known = [
        f"engine's id {request['request']}",
        f"started {clock(request['started_ns'], now_ns=now_ns)} UTC",
        f"lasted {duration(duration_ns(request, now_ns=now_ns))}",
        request["connector"] or "no connector named",
        f"model {request['model'] or 'not known'}",
        f"engine {request['engine_name']}",
        f"trace {request['trace_id']}",
    ]
    st.caption(plain(" · ".join(known)))


def what_happened(timeline: Row, answer: Answer) -> None:
    """What became of it and where its time went, in sentences; its hand-offs, errors, missing events, and the end of its
    engine."""
    request, now_ns = timeline["request"], time.time_ns()
    if sentence := phases.sentence(answer.parts):
        st.markdown(plain(sentence))
    handoff_links(timeline)
    notes = st.container()
    if request["error"]:
        notes.error(f"A call for this request raised. {plain(request['error'])}")
    if sentence := missing_events(timeline):
        notes.warning(sentence)
    said = [sentence] if (sentence := why_unknown(request)) else []
    said += [plain(engine_end.sentence(answer.end, now_ns=now_ns))] if answer.end is not None else []
    if said:
        (notes.error if request["outcome"] == Outcome.LOST else notes.info)(" ".join(said))
    if answer.end is not None:
        page_, query = engine_end.link(answer.end)
        with notes:
            link(page_, "What happened then", icon="history", query=query)


def handoff_links(timeline: Row) -> None:
    """The requests of other engines to which its KV was handed over, or from which it came."""
    if not (known := handoffs(timeline)):
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="handoffs"):
        for words, other in known:
            if other is None:
                st.caption(plain(words), width="content")
            else:
                link("request", plain(words), icon="swap_horiz", query=request_query(other))


def downloads(request_id: str, engine: str) -> None:
    """The request as files, fetched when their button is pressed."""

    def as_json() -> str:
        return json.dumps(tracer().request(request_id, engine=engine), indent=2)

    st.caption("JSON has what this page shows. OTLP has the spans, for `kvtrail audit` and any OpenTelemetry tool.")
    with st.container(horizontal=True):
        st.download_button("JSON", as_json, f"{request_id}.json", "application/json", on_click="ignore")
        spans = partial(tracer().otlp, request_id, engine=engine)
        st.download_button("OTLP", spans, f"{request_id}.jsonl", "application/x-ndjson", on_click="ignore")


def both_engines(known: pair.Pair, number: int, *, is_alone: bool) -> None:
    """The request and the one on the other side of its hand-off, on one axis; where the time to the first token went, and
    what each engine computed."""
    giver, taker = known.names
    which = "" if is_alone else f", {number + 1}"
    st.subheader(f"Prefill and decode{which}", anchor=False, help=TERMS["hand-off"])
    st.caption(plain(f"{giver} prefills, {taker} decodes. {pair.kept_text(known.link)}"))
    parts, dark = pair.stages(known), is_dark()
    if text := pair.first_token_text(parts, known.link):
        st.markdown(plain(text))
        st.html(legend(pair.stage_legend(parts, dark=dark)))
    draw_chart(pair.pair_chart(known, parts, dark=dark), key=f"pair_{number}")
    st.caption(plain(pair.alignment(known.link)))
    tables.table(
        pair.computed_rows(known),
        key=f"pair_tokens_{number}",
        note=" ".join(filter(None, (pair.twice_text(known), pair.again_text(known)))),
        numbers=("Prompt", "From its cache", "Loaded", "Computed"),
        widths={"Engine": 240, "Why": 420},
    )


def pairs_of(timeline: Row | None, parts: list[phases.Stretch]) -> list[pair.Pair]:
    """The request with each one that is known on the other side of a hand-off."""
    found = []
    for link_ in (timeline or {}).get("handoffs", ())[:MAX_PAIRS]:
        other = tracer().request(link_["request"], engine=link_["engine"]) if link_["request"] else None
        if timeline is not None and other is not None:
            found.append(pair.pair_of(timeline, parts, other, phases_of(other), link_))
    return found


def end_of_engine(timeline: Row | None) -> Row | None:
    """The end of the engine of a request that was open then; None of another request, or where it is not known."""
    if timeline is None or (asked := engine_end.asked(timeline["request"], now_ns=time.time_ns())) is None:
        return None
    return engine_end.found(timeline["request"], tracer().markers(**asked))


def charts(timeline: Row, parts: list[phases.Stretch]) -> None:
    """The phases and the timeline above the account, on the same axis."""
    axis = axis_switch("Where its time went")
    dark = is_dark()
    style = request_charts.Style(frame=request_charts.frame(timeline, parts=parts), dark=dark, by_step=axis == BY_STEP)
    st.html(legend(request_charts.phase_legend(parts, dark=dark)))
    draw_chart(request_charts.timeline_chart(timeline, style, parts), key=f"timeline_{axis}")
    st.html(legend(request_charts.mark_legend([timeline], dark=dark)))
    st.subheader("Its account, in tokens", anchor=False)
    st.html(legend(request_charts.measure_legend(dark=dark)))
    draw_chart(request_charts.account_chart(timeline, style), key=f"account_{axis}")


def phases_of(timeline: Row | None) -> list[phases.Stretch]:
    """The phases of a request, as the live view has them."""
    if timeline is None:
        return []
    request = timeline["request"]
    return phases.stretches(tracer().lanes(**phases.question(request, now_ns=time.time_ns())), request)


def resolved(query: dict[str, str], trace_id: str) -> tuple[Row | None, str, str]:
    """The request that the address names, by its id or a trace that has no other: what the tracer knows of it, its id and its
    engine; empty where a trace names none or several."""
    request_id, engine = query.get("id", ""), query.get("engine", "")
    try:
        if not request_id:
            found = tracer().requests_of_trace(trace_id)
            request_id, engine = (found[0]["request"], found[0]["engine"]) if len(found) == 1 else ("", "")
        return (tracer().request(request_id, engine=engine) if request_id else None), request_id, engine
    except TracerAway:
        return None, request_id, engine  # the page below shows the error


asked = address.query()
asked_trace = "" if asked.get("id") else asked.get("trace", "").strip().lower()
if not (asked.get("id") or asked_trace):
    st.header("Which request?", anchor=False)
    st.markdown(
        "This page needs a request's id in its address, as `/request?id=...`, or its trace's as `/request?trace=...`."
    )
    link("requests", "Choose one from the list")
else:
    known, named, of_engine = resolved(asked, asked_trace)
    if not named:
        of_trace(asked_trace)
    else:
        chosen = switch("About it", TABS | (HANDOFF if known and known.get("handoffs") else {}), name="tab")
        replay.begin(asked)
        if chosen == "compare":
            compare.show(named, of_engine, asked)
        else:
            page(named, of_engine, chosen, asked_trace)
