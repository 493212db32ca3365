"""A history cut down to a finding: the same finding, nothing new, and nothing that can be left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from history import heartbeats, history, loaded
from incidents.corpus import INCIDENTS
from incidents.incident import Incident
from minimal import assert_minimal, findings
from msgspec import structs

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.history import History, load
from kvtrail.tracer.history.minimize import Minimized, NoFinding, minimize
from kvtrail.tracer.ingest import decode, otlp_json
from kvtrail.tracer.rules import pages

FOUND = [incident for incident in INCIDENTS if incident.rule is not None]
CASES = [
    pytest.param(incident, id=incident.id, marks=pytest.mark.long if incident.later_s > 1000 else ())
    for incident in FOUND
]
"""Of an hour of heartbeats many have to be tried."""
STALE_LOOKUP = next(incident for incident in FOUND if incident.rule == "stale-lookup")
NOISE = """
    {0}: L 300 c0 -> 0
    {0}: A 0
    {0}: S 0+300
    {0}: P
    {0}: L 300 c0 -> 0
    {0}: A 0
    {0}: S 0+300
    {0}: end
"""
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached"


def history_of(incident: Incident, *, noise: bool = False) -> list[Event]:
    """The incident, and the heartbeats that show what comes too late."""
    around = [NOISE.format(f"n{number}") for number in range(12)] if noise else ["", ""]
    middle = len(around) // 2
    events = replace(incident, text="\n".join([*around[:middle], incident.text, *around[middle:]])).events()
    return events + heartbeats(events, later_s=incident.later_s)


@cache
def minimized(incident_id: str) -> tuple[History, Minimized]:
    """The recording of an incident, and what is left of it."""
    incident = next(each for each in FOUND if each.id == incident_id)
    recording = loaded(history_of(incident))
    return recording, minimize(recording, rule=incident.rule)


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind.removeprefix("kv.") for event in events]


def written(recording: History, path: Path) -> Path:
    path.write_text("".join(f"{otlp_json.spans_to_json_line([span])}\n" for _, span in recording.moments))
    return path


@pytest.mark.parametrize("incident", CASES)
def test_an_incident_keeps_its_finding_and_nothing_can_be_left_out(incident: Incident, tmp_path: Path) -> None:
    recording, result = minimized(incident.id)
    after = result.finding
    assert after.rule == incident.rule
    before = findings(recording.events)[after.id]
    assert (after.id, after.numbers, after.witness) == (before.id, before.numbers, before.witness)
    assert after.explanation == before.explanation
    assert result.events == len(result.history.moments) <= result.events_before == len(recording.moments)
    assert_minimal(result)
    assert minimize(result.history, finding=after.id).history == result.history
    judged = audit([written(result.history, tmp_path / "small.jsonl")])
    assert judged.missing == 0
    assert {f.id: f for f in judged.findings} == findings(result.history.events)
    assert {f.id for f in judged.findings} | {f.id for f in result.lost} == set(findings(recording.events))


def test_the_incidents_are_of_every_rule() -> None:
    assert {incident.rule for incident in FOUND} == {*pages.files()}


@pytest.mark.parametrize("incident", CASES)
def test_what_happens_around_an_incident_is_left_out(incident: Incident) -> None:
    """What is left is that of the incident alone, of which the test above shows that nothing can go."""
    _, alone = minimized(incident.id)
    result = minimize(loaded(history_of(incident, noise=True)), rule=incident.rule)
    reported, reported_alone = (
        [(e.kind, e.epoch, e.numbers()) for e in each.history.events if not isinstance(e, Heartbeat)]
        for each in (result, alone)
    )
    assert reported == reported_alone
    assert (result.requests_before - result.requests) == (alone.requests_before - alone.requests) + 12
    if result.events != alone.events:  # heartbeats at other times prove the same
        assert_minimal(result)


def test_the_spans_say_what_the_events_say_and_keep_what_is_not_a_number(tmp_path: Path) -> None:
    recording = loaded(history_of(STALE_LOOKUP, noise=True))
    recorded = {span.span_id: span for _, span in recording.moments}
    result = minimize(recording)
    assert [e.sequence for e in result.history.events] == list(range(result.events))
    numbers = {semconv.SEQUENCE.key, semconv.REQUEST_SEQUENCE.key}
    for event, span in result.history.moments:
        assert decode.from_span(span) == event
        was = recorded[span.span_id]
        assert {**span.attributes, **{key: was.attributes[key] for key in numbers}} == was.attributes
        assert (span.start_ns, span.end_ns, span.trace_id, span.name) == (
            was.start_ns, was.end_ns, was.trace_id, was.name,
        )  # fmt: skip
    assert load([written(result.history, tmp_path / "small.jsonl")]) == result.history


def test_what_the_recording_lost_stays_missing(tmp_path: Path) -> None:
    """A hole must not close with those that the cutting makes: the request would look whole."""
    events = history(f"{NOISE.format('a')}\n{STALE}\nend")
    lost = next(
        index for index, event in enumerate(events) if event.request_sequence == 1 and "a-" not in str(event.request)
    )
    recording = loaded(events[:lost] + events[lost + 1 :])
    before = audit([written(recording, tmp_path / "whole.jsonl")])
    result = minimize(recording)
    after = audit([written(result.history, tmp_path / "small.jsonl")])
    assert (before.missing, after.missing) == (1, 1)
    assert [f.explanation for f in after.findings] == [f.explanation for f in before.findings]
    assert kinds(result.history.events) == ["request.start", "alloc", "schedule", "preempt", "lookup"]
    assert [e.request_sequence for e in result.history.events] == [0, 2, 3, 4, 5]
    assert minimize(result.history).history == result.history


def test_a_gap_that_hides_a_drift_goes_on_to_hide_it() -> None:
    """Renumbered as if nothing were missing, the other request would be found guilty."""
    events = history(f"{STALE}\nb: L 900 c0 h64 -> 64\nb: A 32\nb: end")
    lost = next(index for index, event in enumerate(events) if str(event.request).startswith("b-"))
    recording = loaded(events[:lost] + events[lost + 1 :])
    assert {f.rule for f in findings(recording.events).values()} == {"stale-lookup"}
    assert len(minimize(recording).lost) == 0
    with pytest.raises(NoFinding, match="rule alloc-mismatch"):
        minimize(recording, rule="alloc-mismatch")


@pytest.mark.parametrize(
    ("text", "rule", "kept"),
    [
        (
            "a: L 300 c0 -> 0\na: A 0\na: S 0+300\na: plan store 0+256 keys k\na: end\n"
            "L 300 c0 h256 -> 256 keys k\nevict k\nA 256",
            "evicted-in-use",
            "request.start lookup alloc schedule store.plan request.start lookup evict alloc",
        ),
        (
            "L 300 c0 h256 -> 256 async\nA 256\nR\nS 256+44\nP\nL 300 c288 h256 -> 256 cached",
            "stale-lookup",
            "request.start lookup alloc received schedule preempt lookup",
        ),
        (
            "b: L 90 c0 -> 0\nb: A 0 [1-3]\nb: S 0+90\nb: plan store 0+64 [1 2] #7\nb: end\n"
            "L 90 c0 -> 0\nA 0 [2-4]\nb: done #7",
            "block-reuse",
            "request.start lookup alloc schedule store.plan request request.start lookup alloc transfer.end",
        ),
    ],
)
def test_what_is_kept_is_a_story_without_a_hole(text: str, rule: str, kept: str) -> None:
    """Each of these findings shows by fewer events, too: then it would seem to be another fault than it is."""
    recording = loaded(history(text))
    result = minimize(recording, rule=rule)
    assert " ".join(kinds(result.history.events)) == kept
    assert_minimal(result)


def test_nothing_is_found_that_the_recording_does_not_show() -> None:
    """Without its `received`, the other request would be stuck, and prove that the recorder lived."""
    text = f"{STALE}\nb: L 300 c0 h256 -> 256 async\nb: A 256\nb: R\nb: S 256+44\nL 800 c0 h256 -> 256 async\nA 256"
    events = history(text, connector="OffloadingConnector")
    events += heartbeats(events, later_s=900)
    found = {f.rule for f in findings(events).values()}
    result = minimize(loaded(events), rule="stuck-load")
    assert "stuck-load" in found
    assert {f.rule for f in findings(result.history.events).values()} <= found
    assert_minimal(result)


def test_an_id_that_is_used_again_is_not_taken_for_the_request_before() -> None:
    """Of the first only its start and end may be left, or nothing."""
    first = history("L 300 c0 h64 -> 64\nA 64\nS 64+200\nend")
    second = history(STALE)
    events = [*first]
    for event in second:
        number = len(events)
        later_ns = 10**9
        events.append(
            structs.replace(
                event, sequence=number, request_sequence=number, span_id=f"{number + 1:016x}",
                start_ns=event.start_ns + later_ns, end_ns=event.end_ns + later_ns,
            )
        )  # fmt: skip
    result = minimize(loaded(events))
    assert kinds(result.history.events) == ["request.start", "lookup", "alloc", "schedule", "preempt", "lookup"]
    assert result.history.events[0].start_ns == events[len(first)].start_ns
    assert_minimal(result)


def test_the_worst_is_kept_and_of_those_the_earliest_unless_one_is_asked_for() -> None:
    texts = ["refs -1", "b: L 749 c0 h256 -> 300", "c: L 749 c0 h256 -> 300", "c: L 749 c0 h256 -> 0\nc: A 100"]
    recording = loaded(history("\n".join(texts)))
    by_rule = {(f.rule, f.external[:1]): f for f in findings(recording.events).values()}
    chosen = {
        "crash": minimize(recording).finding,
        "rule": minimize(recording, rule="double-free").finding,
        "request": minimize(recording, request=by_rule["over-report", "c"].external).finding,
        "id": minimize(recording, finding=by_rule["alloc-mismatch", "c"].id[:6]).finding,
    }
    assert {name: (f.rule, f.external[:1]) for name, f in chosen.items()} == {
        "crash": ("over-report", "b"),
        "rule": ("double-free", by_rule["double-free", "c"].external[:1]),
        "request": ("over-report", "c"),
        "id": ("alloc-mismatch", "c"),
    }
    with pytest.raises(NoFinding, match="none of the 4 findings has rule no-token-left, request nobody") as nothing:
        minimize(recording, rule="no-token-left", request="nobody")
    assert nothing.value.found[0].rule == "over-report"


def test_without_a_drift_there_is_nothing_to_keep() -> None:
    with pytest.raises(NoFinding, match="no drift was found"):
        minimize(loaded(history("L 749 c0 h256 -> 256\nA 256\nend")))


def test_progress_is_reported() -> None:
    heard: list[tuple[int, int]] = []
    result = minimize(
        loaded(history_of(STALE_LOOKUP, noise=True)), on_progress=lambda left, tries: heard.append((left, tries))
    )
    assert heard[-1][1] == result.tries
    assert [tries for _, tries in heard] == sorted(tries for _, tries in heard)


def test_a_log_is_cut_down_as_well_and_its_part_proves_no_more_than_the_log(tmp_path: Path) -> None:
    """A log's requests lack their number 0 for ever: what is made of it is as incomplete."""
    looked_up = "[2025-12-03 01:24:36,{0}] LMCache INFO: Reqid: cmpl-{1}-0, Total tokens 1000, LMCache hit tokens: {2}, need to load: {3}, num_computed_tokens {4}"  # noqa: E501
    lines = [looked_up.format(100 + n, n, 64, 64, 0) for n in range(5)]
    lines.append(looked_up.format(200, 9, 256, -80, 336))
    lines.append("AssertionError: Mismatch in tokens to load: 256 vs 256 (tokens in lmcache) - 336 (tokens in vllm)")
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    result = minimize(load([log]))
    assert kinds(result.history.events) == ["lookup", "alloc"]
    assert [e.request_sequence for e in result.history.events] == [1, 2]
    before, after = audit([log]), audit([written(result.history, tmp_path / "small.jsonl")])
    assert [f.explanation for f in after.findings] == [f.explanation for f in before.findings]
    assert [e.sequence for e in result.history.events] == [1, 2]
    assert after.missing == before.missing == 0, "it was joined late, and nothing is known to be lost"
