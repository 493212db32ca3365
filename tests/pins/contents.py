"""What the pages show of the day: the rows of each table, the data of each chart, and the sentences. No page is drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import httpx
from fastapi.testclient import TestClient

from kvtrail.dashboard.client import Row, Tracer
from kvtrail.dashboard.content import (
    causes,
    changes,
    charts,
    engines,
    findings,
    latency,
    memory,
    overview,
    requests,
    savings,
    waste,
)
from kvtrail.dashboard.content.request import account, compare, pair, phases, replay, waterfall
from kvtrail.dashboard.content.request import charts as request_charts
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.grouping import OfRequests
from pins import plain
from pins.answers import REQUESTS, condensed, digest
from pins.day import BEGIN_NS, HOUR_NS, NOW_NS, Day

HOUR = TimeRange(NOW_NS - HOUR_NS, NOW_NS, "now-1h to now")
WHOLE = TimeRange(BEGIN_NS, NOW_NS)
DEPLOY_NS = NOW_NS - 57 * 60 * 10**9
ROWS = 8
"""Rows of a long table or chart that are pinned whole."""
Pages = Iterator[tuple[str, Any]]


def pages(day: Day) -> dict[str, Any]:
    """By page, the content of each of its parts."""
    with day.clock():
        tracer = Tracer("http://testserver", transport=httpx.MockTransport(partial(_answered, day.local)))
        made = {
            "overview": _overview(tracer),
            "engines": _fleet(tracer),
            "findings": _findings(tracer),
            "savings": _efficiency(tracer, HOUR),
            "savings of phi-a": _efficiency(tracer, WHOLE, engine="phi-a"),
            "waste": _waste(tracer),
            "latency": _latency(tracer),
            "requests": _requests(tracer),
            "changes": _changes(tracer),
            **{f"request {name}": _request(tracer, name, engine) for name, engine in REQUESTS.items()},
            "pair": _pair(tracer),
            "compare": _compare(tracer),
        }
        return {
            page: {part: condensed(plain(content), whole=ROWS) for part, content in parts}
            for page, parts in made.items()
        }


def _answered(client: TestClient, asked: httpx.Request) -> httpx.Response:
    answer = client.get(asked.url.raw_path.decode())
    return httpx.Response(answer.status_code, content=answer.content)


def chart(drawn: Any, marked: list[Row] | None = None) -> dict[str, Any]:
    """The rows of a chart, and a digest of how it is drawn."""
    spec = charts.readable(charts.spec(drawn), dark=False)
    rows = list(_rows(spec))
    if marked is not None:
        spec = charts.with_markers(spec, marked, dark=False)
    return {"rows": rows[0] if len(rows) == 1 else rows, "spec": digest(json.dumps(spec, sort_keys=True, default=str))}


def _rows(spec: Any) -> Iterator[Any]:
    """The data in a chart, which is taken out of it."""
    if isinstance(spec, dict):
        for name in sorted(spec):
            if name in ("values", "datasets") and isinstance(spec[name], list | dict):
                yield spec.pop(name)
            else:
                yield from _rows(spec[name])
    elif isinstance(spec, list):
        for each in spec:
            yield from _rows(each)


def _overview(tracer: Tracer) -> Pages:
    for shown in (HOUR, WHOLE):
        name, status = shown.field(), tracer.get("status", **shown.query)
        answer, trend = tracer.get("efficiency", **shown.query), tracer.get("findings/trend", **shown.query)
        marked = tracer.get("markers", **shown.query)
        yield f"statements {name}", overview.statements(status, shown)
        yield f"cards {name}", overview.cards(status, answer)
        yield f"sources {name}", chart(charts.sources_over_time(answer, dark=False), marked)
        yield f"findings {name}", chart(charts.findings_over_time(trend, dark=False), marked)
        yield f"rules {name}", findings.rule_rows(status["rules"])
        yield f"markers {name}", [charts.marker_line(each, now_ns=NOW_NS) for each in marked]
    yield "tracer", engines.tracer_status(tracer.get("health"), url="URL", now_ns=NOW_NS)


def _fleet(tracer: Tracer) -> Pages:
    answer = tracer.get("fleet")
    recorders = [recorder for engine in answer["engines"] for recorder in engine["recorders"]]
    listed = engines.in_order(engines.since(answer["engines"], WHOLE))
    yield "counts", engines.counts(answer["engines"], HOUR)
    yield "engines", engines.engine_rows(listed, now_ns=NOW_NS)
    yield "recorders", engines.recorder_rows(recorders)
    yield "pairs", engines.pair_rows(answer["pairs"])
    yield "kept", engines.kept_rows(answer["kept"])
    yield "sentences", (engines.missing_spans(recorders), engines.quiet_engines(recorders))


def _findings(tracer: Tracer) -> Pages:
    found, by_rule = tracer.get("findings", limit=200, **WHOLE.query), tracer.get("findings/rules", **WHOLE.query)
    yield "rules", findings.rule_rows(by_rule)
    yield "rules, oldest first", findings.rule_rows(by_rule, oldest_first=True)
    yield "findings", findings.finding_rows(found)
    for each in {each["rule"]: each for each in reversed(found)}.values():
        yield (
            f"in words: {each['rule']}",
            {
                "sentences": findings.sentences(each),
                "sightings": findings.sightings(each, now_ns=NOW_NS),
                "evidence": findings.evidence(each, {}),
            },
        )
    yield "why known", findings.reasons(found)
    yield "seen", [findings.seen(each, now_ns=NOW_NS) for each in by_rule]


def _efficiency(tracer: Tracer, shown: TimeRange, **filters: str) -> Pages:
    answer, engines = tracer.get("efficiency", **filters, **shown.query), tracer.get("fleet")["engines"]
    sums, models = answer["worth"], {each["engine"]: each["model"] for each in engines}
    yield "is it worth it", savings.verdict(answer, engines)
    yield "cards", savings.cards(sums)
    yield "sentences", [
        savings.memory_held(answer, engines), savings.source_of_savings(sums), savings.limits(sums), savings.waits(sums),
        causes.unknown(sums), causes.largest(sums),
    ]  # fmt: skip
    yield "sources", chart(charts.sources_over_time(answer, dark=False))
    yield "causes", chart(charts.causes_over_time(answer, dark=False))
    for name, each in causes.groups(answer, models).items():
        yield f"causes by {name}", (causes.group_rows(each), chart(charts.causes_by(each, dark=False)))
    yield "copies", savings.copy_rows(sums)
    yield "places", savings.place_rows(answer, models)
    if (curve := memory.most_to_gain(answer, engines)) is not None:
        yield (
            "memory",
            (curve["place"], memory.rows(curve), memory.better({**curve, "place": ""})),
        )
        yield "memory in words", memory.sentences(curve)
        if curve["points"]:
            yield "memory drawn", chart(charts.what_memory_buys(curve, dark=False))


def _waste(tracer: Tracer) -> Pages:
    answer = tracer.get("waste", **WHOLE.query)
    yield "sentence", waste.sentence(answer)
    yield "prefixes", waste.prefix_rows(answer)
    yield "requests", waste.request_rows(answer)
    yield "tenants", waste.tenant_rows(answer)
    for kind in waste.CHOSEN:
        yield kind, waste.narrowed(answer, kind, {})


def _latency(tracer: Tracer) -> Pages:
    answer, measures = tracer.get("latency", of="duration", **HOUR.query), tracer.get("latency/measures", **HOUR.query)
    yield "summary", latency.summary(answer)
    yield "heat map", chart(latency.heat_map(answer, dark=False))
    shown = latency.measures_shown(measures)
    yield "measures", (latency.measure_rows(shown), latency.tokens(measures), latency.usual(measures))


def _requests(tracer: Tracer) -> Pages:
    yield "all", requests.request_rows(tracer.get("requests", limit=200), now_ns=NOW_NS)
    yield "choices", requests.choices(tracer.get("fleet")["engines"])
    for by in get_args(OfRequests):
        answer = tracer.get("latency/groups", by=by.value, of="duration", **WHOLE.query)
        yield (
            f"by {by.value}",
            (
                requests.group_rows(answer),
                requests.group_note(answer, "whole request"),
                requests.group_filters(answer, {}),
            ),
        )


def _changes(tracer: Tracer) -> Pages:
    report = tracer.get("changes", at_ns=DEPLOY_NS, since_ns=NOW_NS - 2 * HOUR_NS, until_ns=NOW_NS)
    names = report["engine_names"] | report["tenant_names"]
    found = changes.in_order(report["changes"])
    yield "what moved", [changes.sentence(each) for each in found]
    yield "rests on", changes.rests_on(report, now_ns=NOW_NS)
    yield "likely", [each["text"] for each in report["likely"]]
    yield "who explains it", changes.rows(changes.explaining(found), names)


def _request(tracer: Tracer, name: str, engine: str) -> Pages:
    timeline, parts = _asked(tracer, name, engine)
    request = timeline["request"]
    yield "facts", account.facts(request)
    yield "steps", account.step_rows(timeline)
    yield "tokens", [account.sum_line(each) for each in account.admissions(timeline)]
    yield "missing", account.missing_events(timeline)
    yield "unknown", account.why_unknown(request)
    yield "phases", (phases.sentence(parts), phases.time_texts(parts))
    for entry in request.get("causes") or ():
        yield f"causes of run {entry['epoch']}", digest(waterfall.waterfall(entry, timeline, dark=False))
    if (allocation := replay.latest_allocation(timeline)) is not None:
        yield "blocks", (replay.block_summary(allocation), replay.block_rows(allocation, timeline.get("groups") or ()))
    last = len(timeline["steps"])
    yield "timeline", chart(request_charts.over_time(timeline, parts, at=last, dark=False))
    yield "replay", (
        replay.title(timeline, step=last), replay.facts(timeline, step=last, now_ns=NOW_NS),
        replay.changes(timeline, step=last),
    )  # fmt: skip


def _asked(tracer: Tracer, name: str, engine: str) -> tuple[Row, list[phases.Stretch]]:
    timeline = tracer.request(name, engine=engine)
    assert timeline is not None, name
    request = timeline["request"]
    return timeline, phases.stretches(tracer.get("lanes", **phases.question(request, now_ns=NOW_NS)), request)


def _pair(tracer: Tracer) -> Pages:
    timeline, parts = _asked(tracer, "prefill-0123abcd", "prefill")
    (link,) = timeline["handoffs"]
    yield "link", account.handoff_text(link)
    other, others = _asked(tracer, "prefill-0123abcd", "decode")
    both = pair.pair_of(timeline, parts, other, others, link)
    stages = pair.stages(both)
    yield "stages", stages
    yield "computed", pair.computed_rows(both)
    yield "sentences", (
        pair.kept_text(link), pair.alignment(link), pair.first_token_text(stages, link), pair.again_text(both),
    )  # fmt: skip
    yield "drawn", chart(pair.pair_chart(both, stages, dark=False))


def _compare(tracer: Tracer) -> Pages:
    a, b = (
        compare.Side(*_asked(tracer, name, engine))
        for name, engine in (("opt-stale-1-0123abcd", "opt-stale"), ("opt-stale-0-0123abcd", "opt-stale"))
    )
    yield "differences", (compare.summary(a, b), compare.rows(a, b))
    offers = tracer.get("requests", near=a.request["request"], near_engine=a.request["engine"], limit=5)
    yield "offers", compare.offer_rows(offers, a.request)
