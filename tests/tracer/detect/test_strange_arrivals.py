"""Events that come late, again, or in a strange order: what they once made the detector say.

Each history is the smallest that was left of a damaged run of the real scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from history import heartbeats, history, rules_found
from msgspec.structs import replace

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event, Heartbeat

S = 10**9
HOUR_NS = 3600 * S
LOADS = "L 749 c0 h256 -> 256 async\nA 256 [1-8]"
LOADED = f"{LOADS}\nR\nA 0 [1-8]\nS 256+48 [1-10]\nend"


def alive(events: list[Event], seconds: int) -> list[Event]:
    """The events, and then heartbeats."""
    return [*events, *heartbeats(events, later_s=seconds)]


def fed(detector: Detector, events: Iterable[Event], *, at_s: int = 0) -> Detector:
    for event in events:
        detector.feed([event], at_ns=at_s * S)
    return detector


@pytest.mark.parametrize("off_s", [-3600, -212, 0, 3600])
def test_a_recorders_clock_does_not_say_when_its_requests_are_forgotten(off_s: int) -> None:
    """What has ended is kept for events that come late, by the time that has passed here."""
    events = [
        replace(event, start_ns=event.start_ns + off_s * S, end_ns=event.end_ns + off_s * S)
        for event in history("L 64 c0 h64 -> 64\nA 64\nend")
    ]
    now_ns = events[-1].end_ns - off_s * S
    detector = Detector()
    detector.feed(events, at_ns=now_ns)
    assert detector.forget_finished(before_ns=now_ns - 59 * S) == 0
    assert detector.forget_finished(before_ns=now_ns + S) == 1


def test_a_recorder_that_left_may_still_owe_events() -> None:
    """Its goodbye overtakes its other events, and is forgotten; then the others are given up."""
    first, *rest = history(LOADED)
    goodbye = replace(heartbeats([first, *rest], later_s=0)[-1], recorder_closed=True, sequence=0)
    assert isinstance(goodbye, Heartbeat)
    detector = fed(Detector(), [goodbye, *rest])
    detector.forget_finished(before_ns=goodbye.end_ns + 100 * S)
    detector.settle()
    assert rules_found(detector) == []


def test_what_comes_again_of_a_request_that_was_forgotten_is_no_request_that_waits() -> None:
    events = alive(history(LOADED), 400)
    begun = [event for event in events[:3] if event.request is not None]
    detector = fed(Detector(), events[:10])
    assert detector.forget_finished(before_ns=events[10].end_ns + 100 * S) == 1
    fed(detector, [*begun, *events[10:]])
    detector.tick()
    assert rules_found(detector) == []


def test_an_account_that_is_ahead_of_its_recorder_waits_since_no_time() -> None:
    """The clock was set back by an hour; the request is whole, and the recorder's events before it are lost."""
    before = history("b: L 300 c0 h0 -> 0\nb: A 0 [20-30]\nb: S 0+300\nb: end")
    shifted = [
        replace(event, sequence=event.sequence + 100, start_ns=event.start_ns - HOUR_NS, end_ns=event.end_ns - HOUR_NS)
        for event in history(LOADS)
    ]
    late = replace(heartbeats(before, later_s=0)[-1], sequence=50)
    detector = fed(Detector(), [*shifted, late])
    detector.settle()
    detector.tick()
    assert rules_found(detector) == []


def test_a_clock_that_jumps_before_the_second_heartbeat_is_no_time_that_has_passed() -> None:
    events = jumping()
    beat = replace(
        heartbeats(events, later_s=0)[-1], sequence=0, start_ns=events[0].start_ns, end_ns=events[0].start_ns
    )
    detector = fed(Detector(), [beat, *(replace(event, sequence=event.sequence + 1) for event in events)])
    detector.tick()
    assert rules_found(detector) == []


def test_nor_is_it_where_no_heartbeat_was_received() -> None:
    detector = fed(Detector(), jumping())
    detector.tick()
    assert rules_found(detector) == ["stuck-load"], "of a log, which has nothing but its clock"
    detector = fed(Detector(), [replace(event, capabilities="{}") for event in jumping()])
    detector.tick()
    assert rules_found(detector) == []


def jumping() -> list[Event]:
    """A load is under way when the clock is set forwards by an hour."""
    events = history(f"{LOADS}\nb: L 300 c0 h0 -> 0")
    later = [replace(event, start_ns=event.start_ns + HOUR_NS, end_ns=event.end_ns + HOUR_NS) for event in events[3:]]
    return [*events[:3], *later]
