"""What is lost is unknown, and what is resynced is known: fact by fact, and a loss never makes a drift."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from history import history, judge, rules_found
from msgspec.structs import replace

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event, Heartbeat, Holdings, Schedule
from kvtrail.tracer.ledger.recorder_clocks import RecordedTime
from kvtrail.tracer.model.findings import Unknown, Verdict

S = 10**9
STORED = "a: plan store 0+64 keys k1,k2\n"
CLAIMED = "b: L 65 c0 h64 -> 64 keys k1,k2\n"


def without(events: Sequence[Event], *lost: int) -> list[Event]:
    return [event for number, event in enumerate(events) if number not in lost]


def of(detector: Detector, rule: str) -> dict[Verdict, int]:
    return {verdict: count for (name, verdict), count in detector.verdicts.items() if name == rule}


def with_one_lost(text: str, later: str = "") -> list[Event]:
    """A history with `evict lost` as its first line, which is lost between two calls of others."""
    events = history(f"x: L 64 c0 h0 -> 0\nevict lost\n{text}{later}", connector="OffloadConnector", chunk=32)
    lost = next(number for number, event in enumerate(events) if event.kind == "kv.evict")
    return without(events, lost)


def test_a_chunk_that_was_stored_since_is_known() -> None:
    detector = judge(with_one_lost(STORED + CLAIMED))
    assert of(detector, "phantom-hit") == {Verdict.OK: 1}


def test_a_chunk_without_reports_since_is_unknown_once_and_then_taken_for_held() -> None:
    detector = judge(with_one_lost(CLAIMED + CLAIMED.replace("b:", "c:")))
    assert of(detector, "phantom-hit") == {Verdict.UNKNOWN: 1, Verdict.OK: 1}
    assert detector.unknown["phantom-hit", Unknown.LOST] == 1


def test_a_chunk_that_was_evicted_since_is_known_to_be_gone() -> None:
    detector = judge(with_one_lost(f"{STORED}evict k2\n{CLAIMED}"))
    assert rules_found(detector) == ["phantom-hit"]


def test_after_a_reset_every_chunk_is_known() -> None:
    assert rules_found(judge(with_one_lost(f"reset\n{STORED}{CLAIMED.replace('k2', 'k3')}"))) == ["phantom-hit"]


def listed(events: list[Event], *parts: tuple[str, ...], before: str) -> list[Event]:
    """The events with a list of the chunks held, in parts, before the first lookup of a request."""
    at = next(number for number, event in enumerate(events) if (event.request or "").startswith(before))
    like = events[at]
    reported: list[Event] = [
        Holdings(
            engine=like.engine,
            recorder=like.recorder,
            sequence=like.sequence + number,
            role="scheduler",
            start_ns=like.start_ns,
            end_ns=like.end_ns,
            chunk_keys=keys,
            holdings_first=number == 0,
            holdings_last=number == len(parts) - 1,
        )
        for number, keys in enumerate(parts)
    ]
    moved = [replace(event, sequence=event.sequence + len(reported)) for event in events[at:]]
    return [*events[:at], *reported, *moved]


def test_what_a_whole_list_does_not_name_is_absent() -> None:
    events = with_one_lost(CLAIMED)
    assert rules_found(judge(listed(events, ("k1",), ("k3",), before="b-"))) == ["phantom-hit"]
    assert of(judge(listed(events, ("k1",), ("k2",), before="b-")), "phantom-hit") == {Verdict.OK: 1}
    reported = listed(events, ("k1",), ("k3",), before="b-")
    without_its_end = [e for e in reported if not (isinstance(e, Holdings) and e.holdings_last)]
    assert rules_found(judge(without_its_end)) == []


def test_a_list_does_not_excuse_what_is_known_to_be_absent() -> None:
    events = history(CLAIMED, connector="OffloadConnector", chunk=32)
    assert rules_found(judge(listed(events, ("k1", "k2"), before="b-"))) == ["phantom-hit"]


def test_a_resynced_table_is_known() -> None:
    text = "L 96 c0 h0 -> 0\nA 0 [1-3]\nS 0+96 [1-3]\nS 96+1 [4]\nplan store 0+32 [9]\nend"
    events = history(text)
    assert rules_found(judge(events)) == ["plan-blocks"]
    first_step = next(number for number, event in enumerate(events) if event.kind == "kv.schedule")
    assert rules_found(judge(without(events, first_step))) == []
    later = next(event for event in events if isinstance(event, Schedule) and event.blocks_ids == (4,))
    events[events.index(later)] = replace(later, blocks_ids=(1, 2, 3, 4), blocks_whole=True)
    assert rules_found(judge(without(events, first_step))) == ["plan-blocks"]


REUSE = """
a: L 64 c0 h0 -> 0
a: A 0 [1 2]
a: S 0+64 [1 2]
a: plan store 0+64 [1 2] #1
a: end
b: L 64 c0 h0 -> 0
b: A 0 [1 2]
b: S 0+64 [1 2]
a: done #1
"""


def test_a_transfer_that_began_since_is_judged_if_it_is_known_who_held_its_blocks() -> None:
    assert rules_found(judge(history(f"evict x\n{REUSE}"))) == ["block-reuse"]
    assert rules_found(judge(without(history(f"x: L 9 c0 h0 -> 0\nevict x\n{REUSE}"), 2))) == ["block-reuse"]
    events = history(REUSE.replace("a: plan", "evict x\na: plan"))
    lost = next(number for number, event in enumerate(events) if event.kind == "kv.evict")
    assert rules_found(judge(without(events, lost))) == ["block-reuse"], "its end says that it held nothing"
    still_held = REUSE.replace("a: plan", "evict x\na: plan").replace("a: end\n", "")
    events = history(still_held)
    detector = judge(without(events, lost))
    assert rules_found(detector) == []
    assert detector.unknown["block-reuse", Unknown.LOST] == 1


def test_a_resynced_table_gives_no_block() -> None:
    """Two requests share a block, and one of them ends while its store is under way: the other has held the block before."""
    events = history("""
a: L 64 c0 h0 -> 0
a: A 0 [1 2]
a: S 0+64 [1 2]
b: L 64 c32 h0 -> 0
b: A 0 [1 3]
b: S 32+32 [1 3]
a: plan store 0+64 [1 2] #1
a: end
b: S 64+1 [4]
a: done #1
""")
    assert rules_found(judge(events)) == []
    later = next(event for event in events if isinstance(event, Schedule) and event.blocks_ids == (4,))
    resynced = replace(later, blocks_ids=(1, 3, 4), blocks_whole=True)
    assert rules_found(judge([resynced if event is later else event for event in events])) == []


def test_one_event_lost_in_a_day_costs_a_moment() -> None:
    day = "".join(f"a{n}: plan store 0+32 keys k{n}\nb{n}: L 65 c0 h32 -> 32 keys k{n - n % 7}\n" for n in range(500))
    detector = judge(without(history(day, connector="OffloadConnector", chunk=32), 801))
    verdicts = of(detector, "phantom-hit")
    assert Verdict.DRIFT not in verdicts
    assert verdicts[Verdict.UNKNOWN] <= 0.01 * sum(verdicts.values())


def test_a_recorder_that_samples_says_nothing_of_its_engine() -> None:
    events = [replace(e, sampled_only=True) for e in history(CLAIMED, connector="OffloadConnector", chunk=32)]
    detector = judge(events)
    assert rules_found(detector) == []
    assert detector.unknown["phantom-hit", Unknown.SAMPLED] == 1


def test_what_a_vllm_does_not_show_is_unknown_once_for_each_request() -> None:
    text = "a: L 65 c0 h64 -> 64\na: end\nb: L 65 c0 h64 -> 64\nb: end\n"
    events = history(text, connector="OffloadingConnector")
    shown = judge(events)
    lacking = judge([replace(e, lacks="hit_sources,plans,statistics,of a newer kvtrail") for e in events])
    assert (Verdict.UNKNOWN in of(shown, "stats-mismatch"), of(lacking, "stats-mismatch")) == (
        False,
        {Verdict.UNKNOWN: 2},
    )
    assert lacking.unknown["stats-mismatch", Unknown.VERSION] == lacking.unknown["plan-blocks", Unknown.VERSION] == 2
    assert of(lacking, "over-report") == of(shown, "over-report") != {}
    assert {lacking.why_unknown(a) for a in lacking.accounts.values()} == {None}


def test_what_a_probe_would_have_reported_is_unknown_for_that_reason() -> None:
    """The probe switches itself off, which leaves a gap; the next heartbeat says so. A later loss is a loss again."""
    events = history(f"x: L 64 c0 h0 -> 0\nevict lost\nwait 12\n{CLAIMED}", connector="OffloadConnector", chunk=32)
    lost = next(number for number, event in enumerate(events) if event.kind == "kv.evict")
    off = [replace(e, recorder_probes_off=("Some",)) if isinstance(e, Heartbeat) else e for e in events]
    assert judge(without(events, lost)).unknown["phantom-hit", Unknown.LOST] == 1
    assert judge(without(off, lost)).unknown["phantom-hit", Unknown.PROBE] == 1


# Time.

LOADING = "L 600 c0 h512 -> 512 async\nA 512\n"


def beat(events: Sequence[Event], number: int, after_s: float) -> Event:
    last = events[-1]
    at_ns = last.end_ns + int(after_s * S)
    return Heartbeat(
        engine=last.engine, recorder=last.recorder, sequence=last.sequence + number, start_ns=at_ns, end_ns=at_ns
    )


def test_a_clock_that_jumps_is_no_time_that_has_passed() -> None:
    events = history(LOADING)
    for seconds in (200.0, 3600.0, -3600.0):
        assert rules_found(judge([*events, beat(events, 1, seconds), beat(events, 2, seconds + 5)])) == []


def test_a_recorder_without_contact_does_not_prove_that_a_request_was_stuck() -> None:
    events = history(LOADING)
    alive = [beat(events, number, 5 * number) for number in range(1, 10)]
    woken = [beat(events, 10, 4000), *(beat(events, 10 + number, 4000 + 5 * number) for number in range(1, 5))]
    assert rules_found(judge([*events, *alive, *woken])) == []
    later = [beat(events, 14 + number, 4020 + 5 * number) for number in range(1, 16)]
    assert rules_found(judge([*events, *alive, *woken, *later])) == ["stuck-load"]


@pytest.mark.parametrize("end", ["end", "R", "P"])
def test_a_load_that_hung_is_found_though_it_ended_at_last(end: str) -> None:
    events = history(f"{LOADING}wait 600\n{end}")
    (finding,) = next(iter(judge(events).findings.values())).values()
    assert (finding.rule, finding.numbers["waited_s"]) == ("stuck-load", 600.0)


def test_the_time_of_an_earlier_event_is_that_of_its_own_clock() -> None:
    time, events = RecordedTime(), history("L 64 c0 h0 -> 0\nwait 12\nA 0\nwait 12\nend")
    jumped = [replace(e, end_ns=e.end_ns + (1000 * S if e.sequence >= 4 else 0)) for e in events]
    for event in jumped:
        time.enter(event)
    assert jumped[3].sequence < 4 <= jumped[4].sequence
    true_ns = events[-1].end_ns - events[0].end_ns
    assert abs(time.now_ns - time.of(jumped[0]) - true_ns) <= 5 * S


# An id that is used again.


def test_an_id_that_another_launch_uses_is_another_request() -> None:
    """The engine is killed, and comes back under the same id."""
    first = [replace(e, launch="1") for e in history("L 749 c0 h256 -> 256\nA 256\nS 256+48", recorder="r1")]
    again = [replace(e, launch="2") for e in history("L 749 c0 h0 -> 0\nA 0\nS 0+48\nend", recorder="r2")]
    worker = [replace(e, launch="2") for e in history("load 0/256", recorder="w2")[1:]]
    for number, event in enumerate(worker):
        event.sequence = event.request_sequence = number
    for order in ([*first, *again], [*first, *worker, *again], [*again, *first], [*first[:2], *again, *first[2:]]):
        detector = judge(order)
        (account,) = detector.accounts.values()
        assert "stale-lookup" not in rules_found(detector)
        assert not {"wrong-resume-offset", "alloc-mismatch"} & set(rules_found(detector))
        assert account.recorder in ("r2", "r1")


def test_what_is_left_of_engines_that_said_goodbye_is_nothing() -> None:
    detector = Detector()
    for number in range(20):
        events = history(STORED, engine=f"e{number}", recorder=f"r{number}", connector="OffloadConnector")
        goodbye = replace(beat(events, 1, 1), recorder_closed=True)  # type: ignore[call-arg]
        detector.feed([*events, goodbye])
    detector.forget_finished(before_ns=10**30)
    assert not detector.accounts
    assert not detector._recorders


def test_a_goodbye_that_came_too_soon_is_taken_back() -> None:
    events = history("L 749 c0 h256 -> 256\nA 256\nS 256+48\nend")
    goodbye = replace(beat(events[:3], 1, 0), recorder_closed=True)  # type: ignore[call-arg]
    moved = [replace(event, sequence=event.sequence + 1) for event in events[3:]]
    detector = judge([*events[:3], goodbye, *moved])
    (account,) = detector.accounts.values()
    assert (detector.verdict(account), account.status) == (Verdict.OK, "finished")


# A rule that fails.


def test_a_rule_that_fails_makes_its_request_unknown_and_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtrail.tracer.rules.lookups.over_report import OverReport
    from kvtrail.tracer.rules.rule_set import all_rules

    def broken(self: object, event: object, account: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(OverReport, "judge", broken)
    reported: list[str] = []
    detector = Detector(rules=all_rules(), on_error=lambda name, error: reported.append(f"{name}: {error}"))
    detector.feed(history("L 749 c0 h256 -> 256\nA 100\nS 100+48\nend"))
    assert rules_found(detector) == ["alloc-mismatch"]
    detector.feed(history("L 749 c0 h256 -> 256\nA 256\nS 256+48\nend", request="other", recorder="r2"))
    account = detector.accounts["engine", "other"]
    assert (detector.verdict(account), detector.why_unknown(account)) == (Verdict.UNKNOWN, Unknown.RULE)
    assert reported == ["over-report: division by zero"] * 2


# What requests wait for.

WAITS = "b: start 9\nL 600 c0 h512 -> 512 async\nA 512\nb: end\nwait 600"


def named(events: Sequence[Event], request: str, missed: int = 0) -> list[Event]:
    """The events with heartbeats that name an idle request, with as many events as it had, and some more."""
    had, reported = 0, []
    for event in events:
        had += event.request == request
        if isinstance(event, Heartbeat):
            event = replace(
                event, recorder_recorded=event.sequence, idle_requests=(request,), idle_events=(had + missed,)
            )
        reported.append(event)
    return reported


def test_a_request_that_a_heartbeat_names_has_lost_nothing() -> None:
    """An event of another request is lost while this one waits: it may have been the end of its load, until the recorder
    says how many events the request has had."""
    events = history(WAITS, recorder="recorder")
    (request,) = {event.request for event in events if event.kind == "kv.alloc"}
    lost = next(n for n, event in enumerate(events) if event.kind == "kv.request" and event.request != request)
    assert rules_found(judge(without(events, lost))) == []
    assert rules_found(judge(without(named(events, request or ""), lost))) == ["stuck-load"]
    assert rules_found(judge(without(named(events, request or "", missed=1), lost))) == []


def test_a_request_that_a_heartbeat_names_after_a_goodbye_is_still_open() -> None:
    events = history(WAITS, recorder="recorder")
    (request,) = {event.request for event in events if event.kind == "kv.alloc"}
    events = named(events, request or "")
    first = next(n for n, event in enumerate(events) if isinstance(event, Heartbeat))
    closed = [*events[:first], replace(events[first], recorder_closed=True), *events[first + 1 :]]  # type: ignore[call-arg]
    assert rules_found(judge(closed)) == ["stuck-load"]


@pytest.mark.parametrize(
    ("before", "since", "rule"),
    [
        ("", "L 600 c0 -> 512 async\nA 512", "stuck-load"),
        ("L 600 c0 -> later\n", "L 600 c0 -> later", "endless-deferral"),
        ("", "L 600 c0 h0 -> 0", "never-scheduled"),
        ("L 600 c0 -> 0\nA 0\nS 0+600\n", "end delayed", "late-free"),
    ],
)
def test_what_a_request_waits_for_since_it_lost_an_event_is_known(before: str, since: str, rule: str) -> None:
    events = history(f"start 600\n{before}prefetch 0+1\n{since}\nwait 700 spare")
    lost = next(n for n, event in enumerate(events) if event.kind == "kv.prefetch")
    assert rules_found(judge(without(events, lost))) == [rule]


@pytest.mark.parametrize(("later", "rules"), [("", ["stuck-load"]), ("S 0+600\n", [])])
def test_a_failed_load_that_is_not_recomputed_is_found_with_steps_in_columns(later: str, rules: list[str]) -> None:
    """A step of a detailed epoch is recorded with the tokens of all its requests; after a load error, every step is."""
    events = history(f"L 600 c0 h512 -> 512\nA 512 [1-19]\nS 512+88 [1-19]\nerror [3]\n{later}wait 200")
    reported = [replace(e, scheduler_tokens=600) if isinstance(e, Schedule) else e for e in events]
    assert rules_found(judge(reported)) == rules
    basic = [replace(e, blocks_ids=None) if isinstance(e, Schedule) else e for e in reported]
    assert rules_found(judge(basic)) == []


@pytest.mark.parametrize(
    "text",
    [
        "L 600 c0 -> 512 async\nA 512\n!end aborted\nR\nwait 600",  # of one that has ended
        "L 600 c0 -> 512 async\n!L 600 c0 -> 512\nA 512\nS 512+88\nwait 600",  # another lookup is answered
        "L 600 c0 -> later\n!A 0\nS 0+600\nwait 600",
        "L 600 c0 -> 512 async\nA 512\n!R\nS 512+88\nwait 600",
        "L 600 c0 -> 0\nA 0\nS 0+600\nend delayed\n!sent\nwait 700",
        "L 600 c0 -> 512 async\n!A 512\n!end aborted\nR\nwait 600",
    ],
)
def test_an_event_that_was_lost_may_have_ended_the_waiting(text: str) -> None:
    lines = text.splitlines()
    said = [line.removeprefix("!") for line in lines]
    lost = [len(history("\n".join(said[:number]))) for number, line in enumerate(lines) if line.startswith("!")]
    events = history("\n".join(said))
    assert rules_found(judge(events)) == []
    assert rules_found(judge(without(events, *lost))) == []
