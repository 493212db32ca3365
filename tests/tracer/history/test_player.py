"""Stepping through histories: the same accounts as the detector keeps, the same findings as an audit makes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from history import history
from played_history import LATE, REPEATED_AT, STALE_AT, STORY, played

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.history import load
from kvtrail.tracer.history.player import NUMBERS, NothingToShow, Player
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.logs.event_spans import span_of
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import Verdict

CALLS = [
    "L 749 c0 h256 -> 256",
    "L 749 c336 h256 -> 256 cached",
    "A 256",
    "A 300 [1-9]",
    "S 0+48",
    "S 48+1 [3]",
    "P free 1",
    "end",
]
CALLS += [
    "plan load 0+64 [1 2] #1",
    "done #1",
    "load 0/64",
    "R",
    "evict a",
    "store 0+64",
    "refs 1",
    "reset",
    "end delayed",
]


def at_random(seed: int) -> list[Event]:
    """A history of random calls of three requests."""
    rng = random.Random(seed)
    return history("\n".join(rng.choice(["", "b: ", "c: "]) + rng.choice(CALLS) for _ in range(60)))


def write(path: Path, events: Sequence[Event]) -> Path:
    path.write_text("\n".join(otlp_json.spans_to_json_line([span_of(event)]) for event in events) + "\n")
    return path


@pytest.mark.parametrize("seed", range(20))
def test_the_accounts_are_those_that_the_detector_keeps(seed: int) -> None:
    events = at_random(seed)
    detector = Detector()
    for event, step in zip(events, played(events).steps(), strict=True):
        before = _account(detector, event)
        detector.feed([event])
        assert (_of_itself(step.before), _of_itself(step.after)) == (before, _account(detector, event))
        assert step.gap == 0


def _account(detector: Detector, event: Event) -> object:
    account = detector.accounts.get((event.engine, event.request or ""))
    return None if account is None else _of_itself(account.as_dict())


def _of_itself(account: Mapping[str, Any] | None) -> object:
    """What the request's own events say about it: why tokens were no hits also depends on those of others."""
    return None if account is None else {name: value for name, value in account.items() if name != "causes"}


def test_what_is_found_stands_at_the_step_that_brought_it_as_it_was_then() -> None:
    player = played(history(STORY))
    found = {step.number: step for step in player.steps()}
    assert [f.rule for f in found[STALE_AT].findings] == ["stale-lookup"]
    assert found[STALE_AT].findings[0].count == 1
    assert found[REPEATED_AT].findings == ()


@pytest.mark.parametrize("seed", range(10))
def test_the_findings_are_those_of_an_audit_and_so_are_the_verdicts(seed: int, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", at_random(seed))
    player, judged = Player(load([path])), audit([path])
    assert {finding.id for finding in player.findings} == {finding.id for finding in judged.findings}
    assert len(player.findings) == len(judged.findings)
    verdicts = list(player.judged.verdicts.values())
    assert {verdict: verdicts.count(verdict) for verdict in Verdict} == dict(judged.verdicts) | {
        verdict: 0 for verdict in Verdict if not judged.verdicts[verdict]
    }


def test_what_has_not_come_by_the_end_is_found_at_the_last_step() -> None:
    player = played(history(STORY + LATE))
    *others, last = player.steps()
    assert [f.rule for f in last.late] == ["stuck-load"]
    assert not any(step.late for step in others)


def test_steps_say_what_changed_of_the_account() -> None:
    steps = list(played(history(STORY)).steps())
    arrival, lookup = steps[0], steps[1]
    assert arrival.before is None
    assert arrival.changed == {"total": (None, 749), "prompt": (None, 749)}
    assert lookup.changed["returned"] == (None, 256)
    preempted = next(step for step in steps if step.event.kind == "kv.preempt")
    assert preempted.changed["epoch"] == (0, 1)
    assert preempted.changed["computed"] == (256, None)
    evicted = next(step for step in steps if step.event.kind == "kv.evict")
    assert (evicted.before, evicted.after, evicted.changed) == (None, None, {})


def test_every_number_of_an_account_can_be_seen_to_change() -> None:
    """A field that is added to the account must be shown, or be named here."""
    who_and_when = {
        "identity",
        "engine",
        "request",
        "external",
        "trace_id",
        "connector",
        "recorder",
        "started_ns",
        "last_ns",
        "ended_ns",
    }
    shown = {*Account.__struct_fields__} - {
        "evidence",
        "phases",
        "causes",
        "recalled",  # both are as of an admission, and the request's page has them
        "wait_loads",  # said with the time that they took
        "states",  # what single rules remember
    }
    assert set(NUMBERS) | who_and_when == shown


def test_a_gap_is_shown_in_its_place_and_causes_no_finding() -> None:
    whole = history(STORY)
    story = [event for event in whole if event.request == whole[0].request]
    missing = story[3:5]
    player = played([event for event in whole if event not in missing])
    steps = list(player.steps())
    assert [step.gap for step in steps if step.gap] == [2]
    after = next(step for step in steps if step.gap)
    assert (after.before or {})["complete"] is True
    assert (after.after or {})["complete"] is False
    assert player.judged.missing == 2
    innocent = {finding.id for finding in played(whole).findings}
    assert {finding.id for finding in player.findings} <= innocent


def test_what_waited_for_a_missing_event_is_found_where_it_happened() -> None:
    """A breach that the call alone shows is judged although the arrival is missing."""
    player = played(history("L 749 c0 h0 -> 0\nL 749 c336 h256 -> 256\nA 256\nend")[1:])
    assert [f.rule for f in player.findings] == ["over-report"]
    (found,) = [step for step in player.steps() if step.findings]
    assert found.number == 2


def test_an_id_that_is_used_again_is_another_account() -> None:
    first, again = history("L 749 c0 h256 -> 256\nA 256\nend"), history("L 100 c0 h0 -> 0")
    for event in again:
        event.sequence += len(first)
        event.request_sequence += len(first)
        event.span_id = f"{event.sequence:016x}"
    steps = list(played([*first, *again]).steps())
    assert (steps[-1].after or {})["lookups"] == 1
    assert (steps[-2].after or {})["status"] == "queued"


def test_only_some_requests_are_shown_and_judged_as_in_the_whole() -> None:
    events = history(STORY)
    b = next((e.engine, e.request or "") for e in events if (e.request or "").startswith("b-"))
    whole = {step.number: step for step in played(events).steps()}
    player = played(events, request=b[1])
    shown = list(player.steps())
    assert len(player) == len(shown) == sum(e.request == b[1] for e in events)
    assert all(step == whole[step.number] for step in shown)
    assert player.findings == []


def test_there_must_be_something_to_step_through() -> None:
    with pytest.raises(NothingToShow, match="there is no event in it"):
        played([])


def test_any_order_of_lines_gives_the_same_steps_accounts_and_findings(tmp_path: Path) -> None:
    """A hundred times, with a second recorder, a gap and a finding that only the end brings."""
    events = history(STORY + LATE)
    events = [event for event in events if event.span_id != events[4].span_id]
    worker = history("load 256\nload 200/256", recorder="worker-of-engine")
    whole = [*events, *worker]
    path = write(tmp_path / "t.jsonl", whole)
    lines = path.read_text().splitlines()
    outputs = set()
    for seed in range(100):
        random.Random(seed).shuffle(lines)
        path.write_text("\n".join(lines))
        player = Player(load([path]))
        shown = list(player.steps())
        outputs.add(repr([(step.number, step.event, step.after, step.findings, step.late) for step in shown]))
        assert len(shown) == len(whole)
    (text,) = outputs
    assert "stuck-load" in text


def chats(*requests: tuple[str, str]) -> list[Event]:
    """Events of these requests, by engine and id."""
    texts = (
        history("L 749 c0 h0 -> 0", engine=engine, request=request, recorder=engine) for engine, request in requests
    )
    return [event for events in texts for event in events]


CHATS = chats(("e", "chat-1-0123abcd"), ("e", "chat-12-4567abcd"), ("e", "other-99999999"))


@pytest.mark.parametrize(
    ("text", "request_id"),
    [
        ("chat-1-0123abcd", "chat-1-0123abcd"),
        ("chat-1", "chat-1-0123abcd"),
        ("chat-12", "chat-12-4567abcd"),
    ],
)
def test_a_request_is_named_by_its_id_or_the_external_one(text: str, request_id: str) -> None:
    assert played(CHATS, request=text).following == (("e", request_id),)


def test_one_name_may_mean_a_request_in_several_engines() -> None:
    passed = chats(("prefill", "chat-1-0123abcd"), ("decode", "chat-1-89abcdef"))
    both = (("prefill", "chat-1-0123abcd"), ("decode", "chat-1-89abcdef"))
    assert [played(passed, request=text).following for text in ("chat-1", "chat-1-89abcdef")] == [both, both[1:]]


@pytest.mark.parametrize("text", ["", "chat", "hat-1"])
def test_a_name_of_no_request_is_reported_with_the_known_ones(text: str) -> None:
    with pytest.raises(
        NothingToShow, match=f"there is no request '{text}'; there are 3 requests: chat-1, chat-12, other$"
    ):
        played(CHATS, request=text)


def test_of_many_requests_the_first_are_named() -> None:
    with pytest.raises(NothingToShow, match=r"9 requests: r0, r1, r2, r3, r4 and 4 more$"):
        played(chats(*(("e", f"r{n}-0123abcd") for n in range(9))), request="x")


def test_a_step_is_found_by_its_number_and_by_its_finding() -> None:
    player = played(history(STORY + LATE))
    every = list(player.steps())
    assert player.step(STALE_AT) == every[STALE_AT - 1]
    places = range(1, len(player.findings) + 1)
    shown_at = {
        finding.rule: player.step_of_finding(n).number for n, finding in zip(places, player.findings, strict=True)
    }
    assert (shown_at["stale-lookup"], shown_at["stuck-load"]) == (STALE_AT, len(every))
    for nowhere in (0, len(every) + 1, -1):
        with pytest.raises(NothingToShow, match=f"there is no step {nowhere} among the {len(every)} shown"):
            player.step(nowhere)
    for nowhere in (0, len(player.findings) + 1):
        with pytest.raises(NothingToShow, match=f"there is no finding {nowhere}; {len(player.findings)} findings"):
            player.step_of_finding(nowhere)
