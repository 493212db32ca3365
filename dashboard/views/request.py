"""One request: a summary and what to do; its causes, timeline and steps. Its replay, a comparison with another request, and
the other engine of a hand-off are tabs."""

from __future__ import annotations

import os
import time
from functools import partial

import streamlit as st

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.command import TRACE_ID, TRACES_VARIABLE
from kvtrail.dashboard.content.legend import legend
from kvtrail.dashboard.content.request import account, charts, pair, phases
from kvtrail.dashboard.content.request.replay import latest_allocation
from kvtrail.dashboard.content.request.waterfall import waterfall
from kvtrail.dashboard.content.requests import duration_ns
from kvtrail.dashboard.content.text import clock, milliseconds, plain
from kvtrail.dashboard.glossary import TERMS
from kvtrail.dashboard.views import address, compare, replay
from kvtrail.dashboard.views.answers import EVERY_S, read, tracer, unless_away, unless_over
from kvtrail.dashboard.views.charts import draw_chart, is_dark
from kvtrail.dashboard.views.filters import switch
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.request_parts import block_table, finding_cards, phases_of, request_badges, unknown_request
from kvtrail.dashboard.views.tables import table
from kvtrail.tracer.model.cause_words import headline
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.model.words import duration, run

TABS = {"story": "What happened", "replay": "Replay", "compare": "Compare"}
HANDOFF = {"handoff": "Other engine"}
MAX_PAIRS = 3
"""Maximum number of hand-offs shown with the request on the other side."""
MAX_ADMISSIONS = 3
"""Maximum number of admissions outside of the expander."""


def page(request_id: str, engine: str, tab: str) -> None:
    """Draw the page, again at each refresh: even a request that has ended may get late spans."""

    def ask() -> tuple[Row, list[phases.Stretch], list[pair.Pair]] | None:
        timeline = tracer().request(request_id, engine=engine)
        if timeline is None:
            return None
        parts = phases_of(timeline)
        return timeline, parts, pairs_of(timeline, parts) if tab == "handoff" else []

    answer = read(ask, key=f"request {request_id} {engine} {tab}")
    if answer is None:
        unknown_request(f"{plain(request_id)}, by its engine's or its external id")
        return
    timeline, parts, pairs = answer
    header(timeline["request"])
    if tab == "replay":
        replay.show(timeline, parts)
    elif tab == "handoff":
        handoff_links(timeline)
        for number, each in enumerate(pairs):
            both_engines(each, number, is_alone=len(pairs) == 1)
    else:
        show(timeline, parts)


def show(timeline: Row, parts: list[phases.Stretch]) -> None:
    """A summary in sentences; then why its tokens were computed, its time, and its steps."""
    request = timeline["request"]
    what_happened(timeline, parts)
    steps = {finding["id"]: step for step, found in account.findings_by_step(timeline).items() for finding in found}
    finding_cards(timeline["findings"], timeline, steps=steps)
    causes_of(timeline)
    st.subheader("Where its time went", anchor=False)
    dark = is_dark()
    st.html(
        legend(
            [
                *charts.legend_of(phases.time_texts(parts), palette.PHASE, dark=dark),
                *charts.mark_legend(timeline, dark=dark),
            ]
        )
    )
    draw_chart(charts.over_time(timeline, parts, dark=dark), key="timeline")
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
    shown = st.container()
    rest = len(epochs) - MAX_ADMISSIONS
    more = st.expander(f"{rest} more admissions after preemptions") if rest > 0 else shown
    for number, epoch in enumerate(epochs):
        which = "" if len(epochs) == 1 else f"{run(epoch).capitalize()}: "
        entry = admissions.get(epoch)
        with shown if number < MAX_ADMISSIONS else more:
            st.markdown(f"{which}{'. '.join(filter(None, (sums.get(epoch), entry and headline(entry))))}")
            if entry is not None:
                st.html(waterfall(entry, timeline, dark=is_dark()))


def header(request: Row) -> None:
    """The request's name, status and verdict, its ids and files."""
    now_ns = time.time_ns()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.header(f"Request {plain(request['external'] or request['request'])}", width="content", anchor=False)
        request_badges(request)
        if template := os.environ.get(TRACES_VARIABLE, ""):
            traces = template.replace(TRACE_ID, request["trace_id"])
            st.page_link(traces, label="Trace", icon=":material/open_in_new:", help=traces)
        spans = partial(tracer().otlp, request["request"], engine=request["engine"])
        name, help = f"{request['request']}.jsonl", "Its spans, for `kvtrail audit` and any OpenTelemetry tool."
        st.download_button("OTLP", spans, name, "application/x-ndjson", on_click="ignore", help=help, type="tertiary")
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


def what_happened(timeline: Row, parts: list[phases.Stretch]) -> None:
    """Its outcome and the time in each phase, in sentences; its hand-offs, errors, missing events, and the end of its
    engine."""
    request = timeline["request"]
    if sentence := phases.sentence(parts):
        st.markdown(plain(sentence))
    handoff_links(timeline)
    if request["error"]:
        st.error(f"A call for this request raised. {plain(request['error'])}")
    if sentence := account.missing_events(timeline):
        st.warning(sentence)
    if sentence := account.why_unknown(request):
        (st.error if request["outcome"] == Outcome.LOST else st.info)(sentence)
    if (around := account.around_end(request)) is not None:
        link("overview", "What happened then", icon="history", query=around.address)


def handoff_links(timeline: Row) -> None:
    """The requests of other engines that received its KV, or that its KV came from."""
    if not (known := timeline.get("handoffs")):
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="handoffs"):
        for each in known:
            words = plain(account.handoff_text(each))
            if each["request"]:
                link("request", words, icon="swap_horiz", query=request_query(each))
            else:
                st.caption(words, width="content")


def both_engines(known: pair.Pair, number: int, *, is_alone: bool) -> None:
    """The request and the request on the other side of its hand-off, on one axis; the parts of the time to the first token,
    and the tokens that each engine computed."""
    giver, taker = known.names
    which = "" if is_alone else f", {number + 1}"
    st.subheader(f"Prefill and decode{which}", anchor=False, help=TERMS["hand-off"])
    st.caption(plain(f"{giver} prefills, {taker} decodes. {pair.kept_text(known.link)}"))
    parts, dark = pair.stages(known), is_dark()
    if text := pair.first_token_text(parts, known.link):
        st.markdown(plain(text))
        lasted = {part.phase: milliseconds(part.end - part.begin) for part in parts}
        st.html(legend(charts.legend_of(lasted, palette.STAGE, dark=dark)))
    draw_chart(pair.pair_chart(known, parts, dark=dark), key=f"pair_{number}")
    st.caption(plain(pair.alignment(known.link)))
    table(
        pair.computed_rows(known),
        key=f"pair_tokens_{number}",
        note=pair.again_text(known),
    )


def pairs_of(timeline: Row, parts: list[phases.Stretch]) -> list[pair.Pair]:
    """The request paired with each known request on the other side of a hand-off."""
    found = []
    for link_ in timeline.get("handoffs", ())[:MAX_PAIRS]:
        other = tracer().request(link_["request"], engine=link_["engine"]) if link_["request"] else None
        if other is not None:
            found.append(pair.pair_of(timeline, parts, other, phases_of(other), link_))
    return found


asked = address.query()
named, of_engine = asked.get("id", ""), asked.get("engine", "")
if not named:
    st.header("Which request?", anchor=False)
    st.markdown("This page needs a request's id in its address, as `/request?id=...`.")
    link("requests", "Choose one from the list")
else:
    known = unless_away(lambda: tracer().request(named, engine=of_engine))
    ended_ns = known["request"]["last_ns"] if known and known["request"]["outcome"] != "running" else None
    every_s = unless_over(EVERY_S, ended_ns=ended_ns)
    chosen = switch("About it", TABS | (HANDOFF if known and known.get("handoffs") else {}), name="tab")
    replay.begin(asked)
    if chosen == "compare":
        compare.show(named, of_engine, asked)
    else:
        st.fragment(page, run_every=every_s)(named, of_engine, chosen)
