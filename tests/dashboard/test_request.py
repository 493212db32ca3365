"""What the charts and tables say, on a real history: a stale lookup after a preemption, as the tracer answers it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from history import START_NS, history, judge

from kvtrail.dashboard.content import engines, findings, requests
from kvtrail.dashboard.content import text as texts
from kvtrail.dashboard.content.request import account, replay
from kvtrail.dashboard.content.request import charts as request_charts
from kvtrail.dashboard.content.request.phases import Stretch
from kvtrail.dashboard.content.text import WORD_JOINER as J
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.liveness.request_outcome import impact_of, outcome_of
from kvtrail.tracer.model import words
from kvtrail.tracer.serve.api.requests import timeline

STALE = """
L 750 c0 h0 -> 0
A 0
S 0+35
P
L 750 c384 h256 -> 0
L 750 c384 h256 -> 256 cached
A 256 !Mismatch in tokens to load
"""


def timeline_of(text: str) -> dict[str, Any]:
    """The api's answer about the request of this history, with vLLM's own span beside it."""
    events = history(text)
    detector = judge(events)
    ((key, account),) = detector.accounts.items()
    spans = [_span(event) for event in events]
    spans.append(Span("0" * 31 + "1", "f" * 16, "", "llm_request", START_NS - 10**6, START_NS + 10**7, {"n": 1}, {}))
    outcome = outcome_of(account.status, account.outcome, EngineState.RUNNING)
    found = [
        {
            **finding.as_dict(),
            "did": impact_of(outcome, rule=finding.rule, healed=finding.healed, count=finding.count, is_cause=False),
        }
        for finding in detector.findings.get(key, {}).values()
    ]
    about = {
        "outcome": outcome,
        "reason": account.outcome,
        "verdict": detector.verdict(account),
        "findings": len(found),
    }
    entry = {**account.as_dict(), **about}
    data: dict[str, Any] = json.loads(timeline(entry, spans, found).model_dump_json())
    return data


def _span(event: Any) -> Span:
    fields = {a.key: getattr(event, a.field) for a in FIELDS[event.kind]}
    common = {
        semconv.REQUEST_ID.key: event.request,
        semconv.EXTERNAL_ID.key: event.external,
        semconv.EPOCH.key: event.epoch,
        semconv.REQUEST_SEQUENCE.key: event.request_sequence,
        semconv.SEQUENCE.key: event.sequence,
        semconv.CONNECTOR.key: event.connector,
        semconv.ROLE.key: event.role,
        semconv.RANK.key: event.rank,
    }
    known = {key: value for key, value in {**common, **fields}.items() if value is not None}
    resource = {semconv.ENGINE_ID.key: event.engine, semconv.RECORDER_ID.key: event.recorder, "service.name": "vllm"}
    return Span(
        event.trace_id, event.span_id, "", event.kind, event.start_ns, event.end_ns, known, resource,
        scope=semconv.SCOPE, error=event.error,
    )  # fmt: skip


@pytest.fixture(scope="module")
def stale() -> dict[str, Any]:
    return timeline_of(STALE)


def test_every_step_is_a_point_in_the_row_of_its_kind(stale: dict[str, Any]) -> None:
    points = request_charts.step_points(stale)
    assert [point["row"] for point in points] == [
        "llm_request", "arrival", "lookup", "allocation", "schedule", "preemption", "lookup", "lookup", "allocation",
    ]  # fmt: skip


def test_proofs_errors_and_other_services_are_distinct(stale: dict[str, Any]) -> None:
    points = request_charts.step_points(stale)
    assert [(point["row"], point["group"], point["proof"]) for point in points if point["group"] != "kvtrail"] == [
        ("llm_request", "other service", ""),
        ("lookup", "proof of a finding", "L1"),
        ("lookup", "proof of a finding", "L2"),
        ("allocation", "call that raised", ""),
    ]


def test_a_foreign_span_that_began_before_the_request_lies_left_of_zero(stale: dict[str, Any]) -> None:
    assert request_charts.step_points(stale)[0]["from"] == -1.0


def test_a_preemption_makes_computed_and_matched_unknown_until_the_next_lookup(stale: dict[str, Any]) -> None:
    levels = account.step_rows(stale)
    assert [row["In vLLM"] for row in levels] == [None, None, 0, 0, 0, None, 384, 384, 384]
    assert [row["Matched"] for row in levels] == [None, None, 0, 0, 0, None, 256, 256, 256]


def charts_of(timeline: dict[str, Any]) -> list[Any]:
    """All charts of a request."""
    parts = [Stretch("queued", 0.0, 3.0)]
    return [
        request_charts.over_time(timeline, parts, dark=False),
        request_charts.over_time(timeline, [], at=1, dark=False),
    ]


def test_the_same_data_gives_the_same_chart(stale: dict[str, Any]) -> None:
    """Else every refresh would draw it again, and the page would flicker."""
    assert [each.to_json() for each in charts_of(stale)] == [each.to_json() for each in charts_of(stale)]


def test_charts_of_a_request_that_only_just_arrived() -> None:
    assert all(each.to_dict() for each in charts_of(timeline_of("")))


def test_every_mark_says_what_it_is(stale: dict[str, Any]) -> None:
    for chart in charts_of(stale):
        for layer in chart.to_dict()["layer"]:
            assert layer["encoding"].get("tooltip") or layer["data"]["name"] == "here", layer["mark"]


def test_where_the_tokens_came_from_is_one_sum(stale: dict[str, Any]) -> None:
    first, *_ = account.admissions(stale)
    assert (first.asked, first.cached, first.loaded, first.computed) == (750, 0, 0, 750)
    resumed = timeline_of("L 750 c0 h512 -> 512\nA 512\nS 512+238\nP\nL 780 c384 h512 -> 128\nA 128\nS 512+268")
    assert [
        (each.epoch, each.cached, each.loaded, each.computed, each.asked) for each in account.admissions(resumed)
    ] == [
        (0, 0, 512, 238, 750),
        (1, 384, 128, 268, 780),
    ]
    # A load that failed is computed from where it failed.
    failed = timeline_of("L 750 c384 h512 -> 128\nA 128\nS 320+430")
    assert [(each.cached, each.loaded, each.computed) for each in account.admissions(failed)] == [(320, 0, 430)]
    assert account.admissions(timeline_of("L 750 c0 h512 -> 512\nA 512")) == []


def test_a_running_request_has_no_more_tokens_computed_than_it_has(stale: dict[str, Any]) -> None:
    """Its total is that of its latest lookup, and its output goes on."""
    running = timeline_of("L 750 c0 h0 -> 0\nA 0\nS 0+750\nS 750+1\nS 751+1\nL 750 c752 h0 -> 0")
    for each in filter(None, (step["account"] for step in running["steps"])):
        computed, total = account.number(each, "computed"), account.number(each, "total")
        assert computed is None or computed <= total


def test_a_proof_needs_no_glossary(stale: dict[str, Any]) -> None:
    (finding,) = stale["findings"]
    reported = findings.sentences(finding)
    assert len(reported) == 3
    assert reported[0].startswith("L1 is the lookup at ")
    assert "(after it was preempted once) with 384 tokens computed" in reported[0]
    assert "after it was preempted once) vLLM already had 384 of 750 tokens computed" in reported[1]
    assert not any("epoch" in each or "witness" in each for each in reported)
    steps = {step["span_id"]: number for number, step in enumerate(stale["steps"], 1)}
    assert [(row["Proof"], row["Step"]) for row in findings.evidence(finding, steps)] == [("L1", 7), ("L2", 8)]


def test_step_rows_say_what_happened(stale: dict[str, Any]) -> None:
    rows = account.step_rows(stale)
    assert rows[7]["Says"] == "384 of 750 computed, 256 matched; answered 256, cached"
    assert rows[7]["Proof"] == "L2"
    assert rows[8]["Says"].endswith("raised Mismatch in tokens to load")
    assert rows[0]["In vLLM"] is None


def test_losses_are_said_and_explained() -> None:
    assert engines.missing_spans([{"dropped": 0, "missing": 0}]) == ""
    sentence = engines.missing_spans([{"dropped": 1200, "missing": 0}, {"dropped": 0, "missing": 3}])
    assert sentence.startswith(
        "Spans are missing: 1,200 dropped by the recorders themselves and 3 that have not arrived."
    )
    assert "unknown" in sentence


def recorder(**changes: Any) -> dict[str, Any]:
    base = {"id": "r" * 16, "engine": "e" * 36, "service": "vllm", "model": "opt", "received": 1234, "dropped": 0}
    return {
        **base,
        "engine_name": "llama-0",
        "kvtrail": "0.1.0",
        "missing": 0,
        "status": "running",
        "last_ns": START_NS,
        "heard_ns": START_NS,
        "lag_ns": 0,
        "unrecorded": {},
        "unknown": {},
        "probes_off": [],
        "gives_signs": True,
        "ended_by": None,
        **changes,
    }


def test_engines_without_heartbeats_are_named_once_they_are_missed() -> None:
    busy, quiet = recorder(gives_signs=False), recorder(gives_signs=False, status="quiet")
    assert engines.quiet_engines([busy, recorder()]) == ""
    assert "from 1 engine for a while" in engines.quiet_engines([busy, quiet])
    assert "KVTRAIL_HEARTBEATS=spans" in engines.quiet_engines([quiet])


def test_a_failed_request_lasted_until_the_last_that_was_heard_of_it() -> None:
    failed = {"ended_ns": None, "status": "failed", "last_ns": START_NS + 5, "started_ns": START_NS}
    assert requests.duration_ns(failed, now_ns=START_NS + 10**9) == 5
    assert requests.duration_ns({**failed, "status": "running"}, now_ns=START_NS + 10**9) == 10**9


@pytest.mark.parametrize(
    ("ns", "text"),
    [(9_000, "9 µs"), (2_310_000, "2.31 ms"), (223_000_000, "223 ms"), (1_240_000_000, "1.24 s"),
     (123 * 10**9, "2 min 03 s"), (7_260 * 10**9, "2 h 01 min")],
)  # fmt: skip
def test_durations(ns: int, text: str) -> None:
    assert words.duration(ns) == text


def test_numbers_and_times() -> None:
    assert words.count(1234567) == "1,234,567"
    assert words.count(None) == words.NOTHING
    assert words.size(262144) == "256 KiB"
    assert texts.clock(START_NS + 250_000_000) == "01:24:36.250"
    assert texts.clock(START_NS, now_ns=START_NS + 86_400 * 10**9).startswith("2025-12-03 ")


def test_what_a_healed_and_a_postponed_lookup_say() -> None:
    healed = {"total": 750, "computed": 384, "matched": None, "returned": 0, "refused": 256}
    assert words.described("kv.lookup", healed) == (
        "384 of 750 computed, the store's match is hidden; answered 0 in place of 256, which the guard refused"
    )
    assert words.described("kv.lookup", {"total": 9, "computed": 0}).endswith("answered 'ask me later'")


def test_text_of_others_does_not_become_markdown() -> None:
    assert texts.plain("see http://x.test, WWW.x.test and a@x.test") == (
        f"see http\\:{J}//x.test, WWW{J}.x.test and a@{J}x.test"
    )
    assert texts.plain("a_www.x.test xwww.x.test") == f"a\\_www{J}.x.test xwww{J}.x.test", "an underline begins a link"
    assert texts.plain("a*b* [x](y) $z$") == r"a\*b\* \[x\](y) \$z\$"


def test_whether_a_finding_was_healed() -> None:
    assert words.healed(0, count=13) == "not healed"
    assert words.healed(13, count=13) == "healed by the guard"
    assert words.healed(2, count=13) == "healed by the guard twice"


def test_the_page_says_what_was_found_of_the_bytes_of_blocks() -> None:
    looks = "check loaded 8\ncheck held 12 unknown 2 wrong rot 5@96 holds zeros healed"
    compared = timeline_of(f"L 300 c0 h256 -> 256\nA 256\nS 256+44\n{looks}\nend")
    assert [row["Says"] for row in account.step_rows(compared) if row["Kind"] == "block check"] == [
        "8 loaded blocks checked: all hold what was computed",
        "12 held blocks checked: 1 changed though nothing wrote to it, 2 unknown, as their reference is not known; vLLM"
        " recomputes the wrong ones",
    ]
    assert "20 blocks checked, 1 wrong" in account.facts(compared["request"])
    rows = {row["name"]: row["value"] for row in replay.changes(compared, step=len(compared["steps"]))}
    assert (rows["looked_at"], rows["wrong_blocks"]) == ("20", "1")


def test_where_no_bytes_were_compared_the_page_says_nothing_of_them(stale: dict[str, Any]) -> None:
    assert "blocks checked" not in account.facts(stale["request"])
