"""A run beside its recording, both written by hand, without vLLM."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from history import history
from msgspec import structs

from kvtrail.connector.known.offload.recorded import PLENTY, as_recorded
from kvtrail.connector.known.recorded import RecordedStore
from kvtrail.connector.simulate.redrive.comparison import (
    Comparison,
    Outcome,
    compare,
    same_error,
)
from kvtrail.connector.simulate.redrive.recorded import recorded_requests
from kvtrail.connector.simulate.redrive.workload import segments
from kvtrail.connector.simulate.run import Played
from kvtrail.tracer.events.events import Event, Evict
from kvtrail.tracer.history.judging import findings_of

STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\n"
FIXED = STALE.replace("-> 256 cached", "-> 0")
DOUBT = "Some events are missing."


def compared(recorded: str, driven: str, *, doubts: Sequence[str] = (), error: str | None = None) -> Comparison:
    then, now = history(recorded), history(driven)
    return compare(recorded_requests(then), then, recorded_requests(now), played(now, error), doubts)


def played(events: list[Event], error: str | None) -> Played:
    return Played(
        exporters=(), events=events, findings=list(findings_of(events).values()), checks={}, observations=(), error=error,
        traceback="", steps=9, unfinished={}, lookups=(), loads_read=0, loads_copied=False, blocks_compared=0, unprobed=None,
    )  # fmt: skip


def test_the_same_answers_are_the_same_with_their_faults() -> None:
    result = compared(STALE + "A 256", STALE + "A 256")
    assert set(result.outcomes) == {Outcome.SAME}
    breaks = [(each.recorded_breaks, each.driven_breaks) for each in result.answers if each.driven_breaks]
    assert set(breaks) == {(("stale-lookup",), ("stale-lookup",))}
    assert result.same_rules == ("stale-lookup",)


def test_a_difference_shows_what_either_answer_breaks() -> None:
    fixed, worse = compared(STALE + "A 256", FIXED + "A 0"), compared(FIXED + "A 0", STALE + "A 256")
    for result, breaks in ((fixed, (("stale-lookup",), ())), (worse, ((), ("stale-lookup",)))):
        assert result.first is not None
        assert (result.first.recorded_breaks, result.first.driven_breaks) == breaks
        assert "vLLM already had" in result.first.explanation
    assert (fixed.driven_findings, worse.findings) == ((), ())


def test_later_or_asynchronously_is_a_different_answer() -> None:
    for now in ("L 749 c0 -> later", "L 749 c0 h256 -> 256 async", "L 749 c0 h512 -> 512"):
        assert [each.outcome for each in compared("L 749 c0 h256 -> 256", now).answers] == [Outcome.DIFFERENT], now


def test_an_error_is_the_same_or_different() -> None:
    died, lived = "L 749 c0 h256 -> 256\nA 256 !AssertionError: 256 vs 0", "L 749 c0 h256 -> 256\nA 256"
    again = compared(died, died, error="AssertionError: 256 vs 0")
    assert (set(again.outcomes), again.error) == ({Outcome.SAME}, "AssertionError: 256 vs 0")
    assert compared(lived, died, error="AssertionError: 256 vs 0").answers[-1].outcome is Outcome.DIFFERENT
    assert compared(died, lived).answers[-1].outcome is Outcome.DIFFERENT


def test_after_a_difference_only_what_the_store_held_alike_is_compared() -> None:
    """The runs take other courses, and fill the store in another way."""
    first = "L 749 c0 h256 -> {}\nb: L 600 c0 {} -> {}"
    for then, now, outcome in (
        (("h128", 128), ("h128", 0), Outcome.DIFFERENT),
        (("h128", 128), ("h64", 64), Outcome.NOT_COMPARABLE),
        (("h?", 128), ("h?", 0), Outcome.NOT_COMPARABLE),
        (("h128", 128), ("h64", 128), Outcome.SAME),
    ):
        result = compared(first.format(256, *then), first.format(0, *now))
        assert result.answers[0].outcome is Outcome.DIFFERENT
        assert result.answers[1].outcome is outcome, (then, now)


def test_what_is_missing_is_not_held_against_the_connector() -> None:
    """Only where the store held the same is a difference the connector's."""
    result = compared("L 749 c0 h256 -> 256", "L 749 c0 h512 -> 512", doubts=[DOUBT])
    assert (result.answers[0].outcome, result.answers[0].reason) == (Outcome.NOT_COMPARABLE, DOUBT)
    assert not result.has_compared
    alike = compared(STALE, FIXED, doubts=[DOUBT])
    assert alike.outcomes[Outcome.DIFFERENT] == 1


def test_a_recording_that_ends_before_the_request_does_asks_no_more() -> None:
    longer = "L 749 c0 h0 -> 0\nA 0\nS 0+80\nP\nL 749 c64 h0 -> 0"
    assert len(compared("L 749 c0 h0 -> 0\nA 0", longer).answers) == 2
    ended = compared("L 749 c0 h0 -> 0\nA 0\nend", longer)
    assert ended.answers[-1].reason == "the recording has no such call"
    died = compared(longer, "L 749 c0 h0 -> 0\nA 0", error="KeyError: 7")
    assert died.answers[-1].reason == "there was no such call this time; the engine had died"


@pytest.mark.parametrize(
    ("recorded", "driven", "same"),
    [
        ("AssertionError: 256 vs 256 (in lmcache)", "AssertionError: 256 vs 256 (in the cache)", True),
        ("AssertionError: 256 vs 256", "AssertionError: 256 vs 512", False),
        ("AssertionError: 256 (at lmcache.adapter:812 in load)", "AssertionError: 256", True),
        ("AssertionError: 1", "ValueError: 1", False),
    ],
)
def test_errors_are_the_same_by_class_and_numbers(recorded: str, driven: str, same: bool) -> None:
    assert same_error(recorded, driven) is same


def test_a_request_without_hashes_shares_nothing() -> None:
    requests = recorded_requests(history("a: L 600 c0 h0 -> 0\na: S 0+512\nb: L 600 c0 h256 -> 256"))
    a, b = segments(requests, block_size=32).values()
    assert [sum(count for _, count in prompt) for prompt, _ in (a, b)] == [600, 600]
    assert not {seed for seed, _ in a[0]} & {seed for seed, _ in b[0]}


def test_a_store_has_room_for_as_many_chunks_as_its_budget_had() -> None:
    events = [
        structs.replace(event, bytes=100) if isinstance(event, Evict) else event
        for event in history("L 600 c0 h0 -> 0\nevict k0", chunk=64)
    ]
    for some, is_same, chunks in ((events, True, 7), (events, False, PLENTY), (events[:1], True, PLENTY)):
        store = RecordedStore(
            settings={"cpu_bytes_to_use": 799}, same_connector=is_same, chunk_size=64, block_size=32, block_bytes=10,
            events=some, matched={},
        )  # fmt: skip
        assert as_recorded(store) == {"chunk_size": 64, "cpu_bytes_to_use": chunks * 2 * 10}
