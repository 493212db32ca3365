"""Which part of the time counts for rules with a deadline."""

from __future__ import annotations

import pytest
from history import history, judge, rules_found

from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.events.patience import Patience, declaration
from kvtrail.tracer.ledger.recorder_clocks import MAX_MOMENTS, CountedTime

S = 10**9
RUNS = "b: L 600 c0 -> 0\nb: A 0\nb: S 0+600\n"
RECEIVED = "L 600 c0 -> 512 async\nA 512\nR\n"


def counted(text: str, connector: str = "Connector") -> dict[str, float]:
    """What counts of the waiting in a history, in seconds, by the rule that finds it too long; to the last heartbeat."""
    return found(history(text, connector=connector))


def found(events: list[Event]) -> dict[str, float]:
    findings = [finding for held in judge(events).findings.values() for finding in held.values()]
    return {each.rule: each.numbers["counted_s"] for each in findings}


def test_a_sum_is_known_between_its_moments() -> None:
    clock = CountedTime()
    for at_s, counts_s in ((10, 10), (20, 0), (30, 5)):
        clock.add((at_s - 10) * S, at_s * S, counts_s * S)
    assert clock.between(0, 30 * S) == 15 * S
    assert clock.between(5 * S, 30 * S) == 10 * S, "linear in between"
    assert clock.between(5 * S, 19 * S) == 5 * S, "what is not known yet does not count"
    assert clock.between(25 * S, 29 * S) == clock.between(40 * S, 50 * S) == 0


def test_its_memory_is_bounded_and_what_is_forgotten_does_not_count() -> None:
    clock = CountedTime()
    for n in range(3 * MAX_MOMENTS):
        clock.add(n * S, (n + 1) * S, S)
    last = 3 * MAX_MOMENTS * S
    assert len(clock._at_ns) <= MAX_MOMENTS
    assert clock.between(last - 100 * S, last) == 100 * S
    assert MAX_MOMENTS // 2 * S <= clock.between(0, last) < last


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{RECEIVED}wait 131", {"never-scheduled": 130.0}),
        (f"{RUNS}{RECEIVED}wait 900", {}),
        (f"{RUNS}{RECEIVED}wait 900\nb: end\nwait 110", {}),
        (f"{RUNS}{RECEIVED}wait 900\nb: end\nwait 131", {"never-scheduled": 130.0}),
        (f"{RUNS}{RECEIVED}wait 300 spare", {"never-scheduled": 290.0}),
        (f"{RUNS}{RECEIVED}wait 300 full\nwait 100 spare\nwait 300 full", {}),
        (f"{RUNS}L 600 c0 -> later\nwait 900", {}),
        (f"{RUNS}" + "L 600 c0 -> later\nwait 4\n" * 36, {"endless-deferral": 140.0}),
        (f"{RUNS}" + "L 600 c0 -> later\nwait 60\n" * 20, {}),
        (f"{RUNS}" + "L 600 c0 -> later\nwait 60\n" * 26, {"endless-deferral": 125.0}),
    ],
)
def test_a_deadline_runs_only_while_the_scheduler_could(text: str, expected: dict[str, float]) -> None:
    assert counted(text) == pytest.approx(expected, abs=0.2)


def test_where_events_are_missing_it_is_unknown_what_runs() -> None:
    events = history(f"c: start 9\n{RUNS}{RECEIVED}wait 900")
    lost = next(n for n, event in enumerate(events) if event.kind == "kv.schedule")
    assert rules_found(judge(events[:lost] + events[lost + 1 :])) == []


def test_where_a_sampler_leaves_requests_out_it_is_unknown_what_else_runs() -> None:
    for text, after_s in ((f"{RECEIVED}wait 900", None), ("L 600 c0 -> 599 async\nA 599\nwait 900", 600)):
        events = history(text)
        for event in events:
            event.sampled_only = True
        assert list(found(events)) == ([] if after_s is None else ["stuck-load"])
    assert found([event for event in events if event.end_ns < events[0].end_ns + 590 * S]) == {}


def test_a_connector_that_declares_its_patience_is_given_it() -> None:
    declared = declaration({"MyConnector": Patience(300.0, 3600.0)})

    def late(text: str) -> list[str]:
        events = history(text, connector="MyConnector")
        for event in events:
            event.patience = declared
        return list(found(events))

    assert late("L 600 c0 -> 599 async\nA 599\nwait 350") == []
    assert late("L 600 c0 -> 599 async\nA 599\nwait 370") == ["stuck-load"]
    assert late("end delayed\nwait 3600") == []
    assert late("end delayed\nwait 3700") == ["late-free"]
    assert late("L 600 c0 -> later\nwait 350") == []
    assert late("L 600 c0 -> later\nwait 370") == ["endless-deferral"]


def test_a_lease_is_the_deadline_of_what_is_kept() -> None:
    assert counted("end delayed lease 3600\nwait 3650") == {}
    assert list(counted("end delayed lease 3600\nwait 3700")) == ["late-free"]


def test_a_load_waits_for_its_turn_and_no_longer() -> None:
    three = "".join(f"{name}: L 600 c0 -> 512 async\n{name}: A 512\n" for name in "bcd")
    assert counted(f"{three}wait 100\nb: R\nwait 100\nc: R\nwait 100\nd: R") == {}
    assert counted(f"{three}wait 100\nb: R\nwait 100\nc: R\nwait 131\nd: R") == {
        "stuck-load": pytest.approx(130.0, abs=5)
    }
    later = "".join(f"e{n}: L 600 c0 -> 512 async\ne{n}: A 512\nwait 20\ne{n}: R\n" for n in range(8))
    assert list(counted(f"{three}wait 30\nb: R\nc: R\n{later}")) == ["stuck-load"], "others overtake it"


STEP = f"{RUNS}wait 10 full\nL 600 c0 -> 599 async\nA 599\nwait {{}} stuck"


@pytest.mark.parametrize(("stuck_s", "expected"), [(240, []), (260, ["stuck-step"])])
def test_a_step_that_does_not_end_is_one_finding_and_no_load_is_accused(stuck_s: int, expected: list[str]) -> None:
    assert rules_found(judge(history(STEP.format(stuck_s)))) == expected


def test_it_is_found_after_losses_and_where_requests_are_sampled_since_heartbeats_say_all_of_it() -> None:
    events = history(STEP.format(260))
    beats = [event for event in events if event.kind == Heartbeat.kind]
    assert rules_found(judge(events[:3] + events[7:])) == ["stuck-step"]
    assert rules_found(judge(beats)) == ["stuck-step"]
    for event in events:
        event.sampled_only = True
    assert rules_found(judge(events)) == ["stuck-step"]


def test_what_was_open_in_a_step_that_does_not_end_is_said() -> None:
    text = STEP.format(260).replace("wait 10", "plan store 0+600 [1-19] #1\nwait 10")
    (finding,) = (f for held in judge(history(text)).findings.values() for f in held.values())
    assert (finding.request, finding.numbers["loads"], finding.numbers["stores"]) == ("", 1, 1)
    assert "Loads: 1; stores: 1; ended requests" in finding.explanation
    (finding,) = (f for held in judge(history(f"{RUNS}wait 260 stuck")).findings.values() for f in held.values())
    assert "while it ran 1 request. No transfer is known to have been open." in finding.explanation
