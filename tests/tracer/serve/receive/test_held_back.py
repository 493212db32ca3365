"""What waits for missing events, once they are given up or come after all: it is judged in slices, with requests in between,
and the sums are those of a history that came in order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from clocks import turnable
from history import hash_of, history
from msgspec.structs import replace
from wire import encoded

from kvtrail.tracer.capacity.online_curve import CHUNKS
from kvtrail.tracer.detect.detector import GRACE_NS, Detector
from kvtrail.tracer.events.events import Event, RequestEnd
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import judging, pipeline
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

ONE = (
    "q{0}: start 224 of a{0} b{0} c{0} d{0} e{0} f{0} g{0}\nq{0}: L 224 c0 h0 -> 0\nq{0}: A 0 [{1}-{2}]\nq{0}: S 0+224\n"
    "q{0}: end"
)
"""A request with a prompt of its own, which is computed."""


def requests(number: int) -> list[Event]:
    return history("\n".join(ONE.format(each, 7 * each + 1, 7 * each + 7) for each in range(number)))


def one_at_a_time() -> Callable[[], bool]:
    """Enough is one."""
    asked = count()
    return lambda: next(asked) > 0


def test_slices_say_what_the_whole_says() -> None:
    events = requests(12)
    lost = {7, 23}
    come = [event for event in events if event.sequence not in lost]
    whole, sliced = Detector(), Detector()
    whole.feed(come, at_ns=1)
    found = whole.settle(before_ns=2)
    sliced.feed(come[:30], at_ns=1)
    rest, slices, sliced_found = iter(come[30:]), 0, []
    while True:
        sliced_found += sliced.settle(before_ns=2, is_enough=one_at_a_time())
        if not sliced.is_unsettled:
            break
        slices += 1
        if (event := next(rest, None)) is not None:
            sliced_found += sliced.feed([event], at_ns=1, is_enough=one_at_a_time())
    assert next(rest, None) is None, "requests came in between"
    assert slices > 40
    assert sliced.lost == whole.lost == Counter(engine=2)
    assert {each.id for each in sliced_found} == {each.id for each in found}
    for key, account in whole.accounts.items():
        assert sliced.accounts[key].as_dict() == account.as_dict()
        assert sliced.verdict(sliced.accounts[key]) is whole.verdict(account)


def test_an_event_that_comes_after_all_does_not_bring_all_that_waited_at_once() -> None:
    events = requests(12)
    detector = Detector()
    detector.feed(events[1:], at_ns=1)
    detector.feed(events[:1], at_ns=1, is_enough=one_at_a_time())
    assert detector.is_unsettled
    assert detector.engine(events[0].recorder).time.number == 1
    while detector.is_unsettled:
        detector.settle(before_ns=0, is_enough=one_at_a_time())
    assert detector.engine(events[0].recorder).time.number == events[-1].sequence
    assert not detector.missing


def test_after_what_was_given_up_the_next_missing_event_is_waited_for() -> None:
    events = requests(4)
    detector = Detector()
    detector.feed([event for event in events[:10] if event.sequence != 3], at_ns=1)
    detector.settle(before_ns=2)
    assert detector.lost.total() == 1
    detector.feed(events[11:], at_ns=3)
    detector.settle(before_ns=2)
    detector.feed(events[10:11], at_ns=4)
    assert detector.lost.total() == 1


def test_requests_are_taken_between_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = turnable(monkeypatch)
    made = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    events = requests(6)
    for first in range(0, 30, 5):
        made.ingest(encoded([e for e in events[first : first + 5] if e.sequence != 2]), transport="grpc")
    others = iter([history("L 64 c0 h0 -> 0\nA 0\nend", request=f"other-{n}", recorder=f"other-{n}") for n in range(9)])
    taken: list[int] = []

    def pause(seconds: float) -> None:
        if (other := next(others, None)) is not None:
            made.ingest(encoded(other), transport="grpc")
            taken.append(made.detector.engine(events[0].recorder).time.number)

    monkeypatch.setattr(judging.Judge, "_slice", lambda self: one_at_a_time())
    monkeypatch.setattr(pipeline, "_pause", pause)
    clock.ahead_ns += GRACE_NS + 10**9
    made.tidy()
    assert len(taken) == 9
    assert taken == sorted(taken)
    assert taken[0] < taken[-1] < events[-1].sequence, "while it goes on"
    assert made.detector.engine(events[0].recorder).time.number == events[-1].sequence
    assert made.events_missing == 1
    made.close()


@pytest.mark.parametrize("late", range(5))
def test_the_sums_are_those_of_a_history_in_order(tmp_path: Path, late: int) -> None:
    """The requests have ended by the time at which what was found of their prompts is explained."""

    def sums(name: str, order: list[Event]) -> Counter[str]:
        made = Pipeline(SqliteWriter(tmp_path / name), Metrics())
        for event in order:
            made.ingest(encoded([event]), transport="grpc")
        made.tidy()
        made.close()
        total: Counter[str] = Counter()
        for row in SqliteReader(tmp_path / name).savings(since_ns=0, until_ns=time.time_ns()):
            total.update(row.measures)
        return total

    text = "\n".join(ONE.format(each % 2, 8 * each + 1, 8 * each + 7) for each in range(2))
    again = "\n".join(
        f"again: {line}"
        for line in ("start 224 of a0 b0 c0 d0 e0 f0 g0", "L 224 c192 h0 -> 0", "A 0 [1-7]", "S 192+32", "end")
    )
    events = [
        replace(event, computed=256, block_hashes=hash_of(f"out {event.request}"), block_first=7)  # type: ignore[call-arg]
        if isinstance(event, RequestEnd)
        else event
        for event in history(f"{text}\n{again}")
    ]
    in_order = sums("order.db", events)
    assert in_order[CHUNKS] > 0
    assert sums("late.db", [*events[:late], *events[late + 1 :], events[late]]) == in_order


def test_the_curve_holds_no_request_that_has_ended(tmp_path: Path) -> None:
    made = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    events = requests(6)
    for event in [*events[1:], events[0]]:
        made.ingest(encoded([event]), transport="grpc")
    assert not made.judge.sums.online_curve._running
    assert len(made.detector.finished) == 6
    assert all(len(breakdown.chain or ()) <= 4 for each in made.detector.accounts.values() for breakdown in each.causes)
    made.close()
