"""Of what an engine of a recorded history died, what was lost by it, and why; and ends that are no death."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from history import goodbyes, history
from msgspec.structs import replace

from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.events.semconv import NO_END_RECORD
from kvtrail.tracer.history.offline import OfflineDetector
from kvtrail.tracer.liveness.deaths import Death

ERROR = "AssertionError: Mismatch in tokens to load"
BEFORE = "b: L 64 c0 h0 -> 0\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached"
FATAL = f"{BEFORE}\nA 256 !{ERROR}"
ONE, OTHER = "cmpl-1-0-0123abcd", "b-cmpl-1-0-0123abcd"


def deaths(events: Sequence[Event]) -> list[Death]:
    detector = OfflineDetector()
    detector.feed(list(events))
    detector.close()
    return detector.deaths


def ended_by(events: Sequence[Event], error: str | None) -> list[Event]:
    """The events, and a goodbye that names this exception."""
    (goodbye,) = goodbyes(events)
    assert isinstance(goodbye, Heartbeat)
    return [*events, replace(goodbye, recorder_ended_by=error)]


@pytest.mark.parametrize(
    "events",
    [
        history(FATAL),
        ended_by(history(FATAL), ERROR),
        ended_by(history(FATAL), None),
        ended_by(history(FATAL), NO_END_RECORD),
        ended_by(history(BEFORE), ERROR),
    ],
    ids=["no goodbye", "goodbye", "of an older recorder", "of the export process", "raised elsewhere"],
)
def test_a_death_states_its_error_what_was_lost_and_why(events: list[Event]) -> None:
    last = events[-1]
    for seed in range(5):
        random.Random(seed).shuffle(events)
        (death,) = deaths(events)
        assert (death.engine, death.ended_by, death.at_ns) == ("engine", ERROR, last.end_ns)
        assert death.lost == (OTHER, ONE)
        assert death.cause is not None
        assert (death.cause.rule, death.cause.request) == ("stale-lookup", ONE)


@pytest.mark.parametrize(
    "events",
    [
        history("L 749 c0 h256 -> 256\nA 256\nS 256+48\nend"),
        ended_by(history("L 749 c0 h256 -> 256\nA 256\nS 256+48\nend"), None),
        ended_by(history(BEFORE), None),
        history(f"{FATAL}\nb: S 0+64"),
        ended_by(history(f"{FATAL}\nb: S 0+64\nb: end"), None),
        ended_by(history(f"{BEFORE}\nfailure shutdown !{ERROR}"), None),
        ended_by(history("L 749 c0 h0 -> 0\nS 0+749\nend"), NO_END_RECORD),
    ],
    ids=[
        "no end",
        "good end",
        "good end before all requests",
        "went on",
        "went on to a good end",
        "raised in its end",
        "killed while idle",
    ],
)
def test_what_is_no_death(events: list[Event]) -> None:
    assert deaths(events) == []


def test_a_worker_that_is_killed_is_no_death_of_its_engine() -> None:
    events = [*history("L 64 c0 h0 -> 0\nS 0+64\nend"), *history("load 0/64", recorder="worker")[1:]]
    worker = [replace(event, role="worker", sequence=0) for event in events if event.recorder == "worker"]
    scheduler = [event for event in events if event.recorder != "worker"]
    assert deaths([*ended_by(scheduler, None), *ended_by(worker, NO_END_RECORD)]) == []


def test_what_was_found_long_before_is_not_the_cause() -> None:
    earlier = ended_by(history(BEFORE), None)
    later = history(f"wait 100 silent\nc: L 64 c0 -> !{ERROR}", recorder="restarted")
    (death,) = deaths([*earlier, *later])
    assert death.lost == ("c-cmpl-1-0-0123abcd",)
    assert death.cause is None or death.cause.request == "c-cmpl-1-0-0123abcd"


def test_an_engine_that_was_killed_died_without_an_exception() -> None:
    (death,) = deaths(ended_by(history("L 64 c0 h0 -> 0\nS 0+64"), NO_END_RECORD))
    assert (death.ended_by, death.lost, death.cause) == (NO_END_RECORD, (ONE,), None)


def test_an_engine_that_dies_as_it_starts_has_one_death() -> None:
    """No scheduler has recorded anything, and each of its processes sends an end record."""
    ends = [
        Heartbeat(
            engine="engine", recorder=name, sequence=1, start_ns=at_ns, end_ns=at_ns, recorder_closed=True,
            recorder_ended_by="RuntimeError: no such device",
        )
        for name, at_ns in (("first", 10), ("second", 20))
    ]  # fmt: skip
    (death,) = deaths(ends)
    assert (death.engine, death.ended_by, death.lost) == ("engine", "RuntimeError: no such device", ())
    assert deaths([replace(each, recorder_ended_by=NO_END_RECORD) for each in ends]) == []
    (ran,) = deaths([*history(FATAL), *ends])
    assert ran.ended_by == ERROR, "a worker's end is no second death of an engine that ran"
