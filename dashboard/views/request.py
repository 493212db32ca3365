"""One request: what happened and what to do; its causes, timeline and steps. Its replay, a comparison with another request,
and the other engine of a hand-off are tabs."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.command import TRACE_ID, TRACES_VARIABLE
from kvtrail.dashboard.content.legend import legend
from kvtrail.dashboard.content.request import account, charts, pair, phases
from kvtrail.dashboard.content.request.replay import latest_allocation
from kvtrail.dashboard.content.request.waterfall import waterfall
from kvtrail.dashboard.content.requests import duration_ns
from kvtrail.dashboard.content.text import clock, plain
from kvtrail.dashboard.glossary import TERMS
from kvtrail.dashboard.views import address, compare, replay
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer, unless_over
from kvtrail.dashboard.views.charts import draw_chart, is_dark
from kvtrail.dashboard.views.filters import switch
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.request_parts import block_table, finding_cards, request_badges, unknown_request
from kvtrail.dashboard.views.tables import table
from kvtrail.tracer.model.cause_words import headline
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.model.words import duration, run

TABS = {"story": "What happened", "replay": "Replay", "compare": "Compare"}
HANDOFF = {"handoff": "Other engine"}
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


def page(request_id: str, engine: str, tab: str) -> None:
    """Draw the page, again at each refresh: even a request that has ended may get late spans."""

    def ask() -> Answer:
        timeline = tracer().request(request_id, engine=engine)
        parts = phases_of(timeline)
        pairs = pairs_of(timeline, parts) if tab == "handoff" else []
        return Answer(timeline, parts, pairs, end_of_engine(timeline) if tab == "story" else None)

    answer = read(ask, key=f"request {request_id} {engine} {tab}")
    if answer is None:
        return
    if answer.timeline is None:
        unknown_request(f"{plain(request_id)}, by its engine's or its external id")
        return
    header(answer.timeline["request"])
    if tab == "replay":
        replay.show(answer.timeline, answer.parts)
    elif tab == "handoff":
        handoff_links(answer.timeline)
        for number, each in enumerate(answer.pairs):
            both_engines(each, number, is_alone=len(answer.pairs) == 1)
    else:
        show(answer.timeline, answer)


def show(timeline: Row, answer: Answer) -> None:
    """What happened, in sentences first; then why its tokens were computed, its time, and its steps."""
    request = timeline["request"]
    what_happened(timeline, answer)
    steps = {finding["id"]: step for step, found in account.findings_by_step(timeline).items() for finding in found}
    finding_cards(timeline["findings"], timeline, steps=steps)
    causes_of(timeline)
    st.subheader("Where its time went", anchor=False)
    dark = is_dark()
    st.html(legend([*charts.phase_legend(answer.parts, dark=dark), *charts.mark_legend(timeline, dark=dark)]))
    draw_chart(charts.over_time(timeline, answer.parts, dark=dark), key="timeline")
    if (allocation := latest_allocation(timeline)) is not None:
        block_table(allocation, timeline, title="Its block tables, at the latest allocation")
    st.subheader("Every step", anchor=False)
    rows = account.step_rows(timeline)
    table(
        rows,
        key="steps",
        links=[("request", request_query(request, step=row["Step"])) for row in rows],
        note="Each event, and the request's account after it, in tokens. Click a step to see it in the replay.",
        appends=True,
        most_rows=16,
    )


def causes_of(timeline: Row) -> None:
    """The sources of its tokens, and why each was reused or computed, by admission."""
    sums = {each.epoch: account.sum_line(each) for each in account.admissions(timeline)}
    admissions = {each["epoch"]: each for each in timeline["request"].get("causes") or []}
    st.subheader("Where its tokens came from", anchor=False, help=TERMS["cause"])
    if not (sums or admissions):
        st.caption("Not known: its first step is not recorded, or has not arrived yet.")
        return
    epochs = sorted(sums.keys() | admissions.keys())

    def admission(epoch: int) -> None:
        which = "" if len(epochs) == 1 else f"{run(epoch).capitalize()}: "
        entry = admissions.get(epoch)
        st.markdown(f"{which}{'. '.join(filter(None, (sums.get(epoch), entry and headline(entry))))}")
        if entry is not None:
            st.html(waterfall(entry, timeline, dark=is_dark()))

    for epoch in epochs[:MAX_ADMISSIONS]:
        admission(epoch)
    if rest := epochs[MAX_ADMISSIONS:]:
        with st.expander(f"{len(rest)} more admissions after preemptions"):
            for epoch in rest:
                admission(epoch)


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
    if shown := account.facts(request):
        st.caption(plain(" · ".join(shown)))


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
    if sentence := account.missing_events(timeline):
        notes.warning(sentence)
    said = [sentence] if (sentence := account.why_unknown(request)) else []
    said += [plain(account.end_sentence(answer.end, now_ns=now_ns))] if answer.end is not None else []
    if said:
        (notes.error if request["outcome"] == Outcome.LOST else notes.info)(" ".join(said))
    if answer.end is not None:
        page_, query = account.end_link(answer.end)
        with notes:
            link(page_, "What happened then", icon="history", query=query)


def handoff_links(timeline: Row) -> None:
    """The requests of other engines to which its KV was handed over, or from which it came."""
    if not (known := account.handoffs(timeline)):
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="handoffs"):
        for words, other in known:
            if other is None:
                st.caption(plain(words), width="content")
            else:
                link("request", plain(words), icon="swap_horiz", query=request_query(other))


def downloads(request_id: str, engine: str) -> None:
    """The request as files, fetched when their button is pressed."""
    st.caption("OTLP has the spans, for `kvtrail audit` and any OpenTelemetry tool.")
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
    table(
        pair.computed_rows(known),
        key=f"pair_tokens_{number}",
        note=pair.again_text(known),
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
    if timeline is None or (asked := account.end_asked(timeline["request"], now_ns=time.time_ns())) is None:
        return None
    return account.end_found(timeline["request"], tracer().get("markers", **asked))


def phases_of(timeline: Row | None) -> list[phases.Stretch]:
    """The phases of a request, as the live view has them."""
    if timeline is None:
        return []
    request = timeline["request"]
    return phases.stretches(tracer().get("lanes", **phases.question(request, now_ns=time.time_ns())), request)


def resolved(query: dict[str, str]) -> tuple[Row | None, str, str]:
    """The request that the address names, by its id, or by a trace that has no other: what the tracer knows of it, its id and
    its engine; empty where a trace names none or several."""
    request_id, engine = query.get("id", ""), query.get("engine", "")
    try:
        if not request_id:
            found = tracer().requests_of_trace(query.get("trace", "").strip().lower())
            request_id, engine = (found[0]["request"], found[0]["engine"]) if len(found) == 1 else ("", "")
        return (tracer().request(request_id, engine=engine) if request_id else None), request_id, engine
    except TracerAway:
        return None, request_id, engine  # the page below shows the error


asked = address.query()
known, named, of_engine = resolved(asked)
if not named:
    st.header("Which request?", anchor=False)
    trace = asked.get("trace", "")
    st.markdown(
        f"Trace {plain(trace)} has no request here, or several: the list shows which."
        if trace
        else "This page needs a request's id in its address, as `/request?id=...`, or its trace's as `/request?trace=...`."
    )
    link("requests", "Choose one from the list", query={"search": trace} if trace else {})
else:
    ended_ns = known["request"]["last_ns"] if known and known["request"]["outcome"] != "running" else None
    every_s = unless_over(EVERY_S, ended_ns=ended_ns)
    chosen = switch("About it", TABS | (HANDOFF if known and known.get("handoffs") else {}), name="tab")
    replay.begin(asked)
    if chosen == "compare":
        compare.show(named, of_engine, asked)
    else:
        st.fragment(page, run_every=every_s)(named, of_engine, chosen)
