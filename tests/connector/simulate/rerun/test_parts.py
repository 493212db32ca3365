"""The parts of a re-run that need no vLLM: calls from events, who shares what with whom, and where a recording is left."""

from __future__ import annotations

from typing import Any

from history import history as events_from
from msgspec.structs import asdict, replace

from kvtrail.connector.known.offload.environment import room
from kvtrail.connector.simulate.prefixes import Prefixes
from kvtrail.connector.simulate.rerun.calls import Call, RecordedCalls, recorded_calls
from kvtrail.connector.simulate.rerun.fakes import FakeRequest, Run
from kvtrail.connector.simulate.rerun.forks import Forks
from kvtrail.connector.simulate.rerun.rerun import Rewritten
from kvtrail.connector.simulate.rerun.runner import same
from kvtrail.tracer.events.events import Alloc, Event, Lookup, RequestStart, Schedule
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.history import History


def events_of(talk: RecordedCalls) -> tuple[tuple[Event, ...], ...]:
    return tuple(call.events for call in talk.calls)


def calls_of(text: str, **about: Any) -> RecordedCalls:
    return recorded_calls(
        History(moments=tuple((e, Span("", e.span_id, "", e.kind, 0, 0, {}, {})) for e in events_from(text, **about)))
    )


def methods(calls: tuple[Call, ...]) -> list[str]:
    return [f"{call.method.name}:{len(call.events)}" for call in calls]


def test_what_one_step_tells_is_one_call() -> None:
    """In the mini language every line has a time of its own, so two schedules are two steps."""
    talk = calls_of("L 100 c0 h0 -> 0\nA 0 [1 2 3 4]\nS 0+64\nplan store 0+64 keys a\nS 64+36\nend")
    assert methods(talk.calls) == ["BEGIN:1", "LOOKUP:1", "ALLOC:1", "STEP:2", "STEP:1", "END:1"]


def test_a_plan_beyond_its_step_is_of_a_later_one_that_is_not_told() -> None:
    text = "L 600 c0 h0 -> 0\nA 0\nS 0+48\nplan store 0+256 keys a\nplan store 256+256 keys b"
    assert methods(calls_of(text).calls)[3:] == ["STEP:1", "STEP:1", "STEP:1"]


def test_reports_and_steps_are_different_calls() -> None:
    text = "L 100 c0 h64 -> 64 async\nA 64\nplan load 0+64 #1\ndone #1\nR\nA 0\nS 64+36"
    assert methods(calls_of(text).calls)[2:] == ["ALLOC:1", "STEP:1", "REPORT:2", "ALLOC:1", "STEP:1"]


def test_from_a_gap_on_nothing_is_known_to_be_whole() -> None:
    events = events_from("L 100 c0 h0 -> 0\nA 0\nS 0+64\nS 64+36\nend")
    del events[3]
    moments = tuple((e, Span("", e.span_id, "", e.kind, 0, 0, {}, {})) for e in events)
    talk = recorded_calls(History(moments=moments))
    assert [talk.whole_at(call.event) for call in talk.calls] == [True, True, False, False, False]


def test_after_a_fork_a_request_runs_from_where_it_is_until_the_recording_is_caught_up() -> None:
    """The recorded connector had promised 256 tokens after 64, this one promises 32."""
    begin, lookup, alloc, first, second, third = events_from(
        "L 600 c64 h320 -> 256\nA 256\nS 320+48\nS 368+48\nS 416+1"
    )
    assert isinstance(begin, RequestStart)
    assert isinstance(lookup, Lookup)
    assert isinstance(alloc, Alloc)
    forks, held = Forks(), FakeRequest(None, "r")
    now = Lookup(**{**asdict(lookup), "returned": 32})
    forks.looked_up(7, lookup, now)
    assert not forks.any_taken, "nobody has acted on it yet"
    assert forks.allocated(alloc) == 32
    assert forks.allocated(alloc) == 256, "vLLM acts on an answer once"
    runs = []
    for event in (first, second, third):
        assert isinstance(event, Schedule)
        run: Run = forks.run(event, held)
        held.reached = run.computed + run.scheduled
        runs.append((run.computed, run.scheduled))
    assert runs == [(96, 272), (368, 48), (416, 1)]
    assert forks.why_not(third) == (
        "since #7 the recording takes another course: there the scheduler was told 256, here 32"
    )


def test_an_answer_that_nobody_acted_on_is_no_fork() -> None:
    _, first, again, alloc = events_from("L 600 c64 h320 -> 256\nL 600 c64 h64 -> 0\nA 0")
    assert isinstance(first, Lookup)
    assert isinstance(again, Lookup)
    assert isinstance(alloc, Alloc)
    forks = Forks()
    forks.looked_up(1, first, Lookup(**{**asdict(first), "returned": 32}))
    forks.looked_up(2, again, again)
    assert forks.allocated(alloc) == 0
    assert forks.why_not(alloc) == ""


def test_what_is_told_anew_is_numbered_anew_and_keeps_its_gaps() -> None:
    """Two plans replace one; of the request two numbers are missing, of the recorder one more."""
    begin, step, _, last = events_from("S 0+64\nS 64+36\nend")
    rewritten = Rewritten()
    assert rewritten.instead(begin, [begin]) == [begin]
    both = rewritten.instead(step, [step, step])
    assert [(e.sequence, e.request_sequence) for e in both] == [(1, 1), (2, 2)]
    late = replace(last, sequence=7, request_sequence=5)
    (end,) = rewritten.instead(late, [late])
    assert (end.sequence, end.request_sequence) == (8, 6)


def test_equal_keys_are_equal_tokens_up_to_there() -> None:
    requests = calls_of(
        "a: L 600 c0 h0 -> 0\na: plan store 0+256 keys aa11\na: plan store 256+256 keys aa22\n"
        "b: L 600 c0 h256 -> 256 keys aa11\nb: plan store 256+256 keys bb22"
    ).requests()
    prefixes = Prefixes(requests, block_size=32, chunk_size=256)
    a, b = ("a-cmpl-1-0-0123abcd", "b-cmpl-1-0-0123abcd")
    assert prefixes.known
    assert prefixes.tokens(a, 0, 256) == prefixes.tokens(b, 0, 256)
    assert prefixes.tokens(a, 256, 512) != prefixes.tokens(b, 256, 512)
    assert prefixes.tokens(a, 40, 70) == prefixes.tokens(a, 0, 70)[40:]
    ours, theirs = prefixes.block_hashes(a, 0, 16), prefixes.block_hashes(b, 0, 16)
    assert ours[:8] == theirs[:8]
    assert ours[7].hex() == "aa11"
    assert not set(ours[8:]) & set(theirs[8:])
    assert theirs[15].hex() == "bb22"


def test_a_key_tells_of_the_keys_before_it() -> None:
    requests = calls_of(
        "a: L 600 c0 h0 -> 0\na: plan store 0+256 keys aa11\na: plan store 256+256 keys aa22\n"
        "b: L 600 c256 h512 -> 256\nb: plan load 256+256 keys aa22"
    ).requests()
    prefixes = Prefixes(requests, block_size=32, chunk_size=256)
    assert prefixes.shows("b-cmpl-1-0-0123abcd", 512)
    assert not prefixes.shows("b-cmpl-1-0-0123abcd", 768)


def test_hashes_of_blocks_tell_it_too_and_those_of_chunks_are_keys() -> None:
    recorded = calls_of("L 100 c0 h0 -> 0\nplan store 0+64 keys 00112233445566aa", chunk=64)
    begin = recorded.calls[0].event
    assert isinstance(begin, RequestStart)
    begin.block_hashes = b"before--" + bytes.fromhex("00112233445566aa") + b"after---"
    prefixes = Prefixes(recorded.requests(), block_size=32, chunk_size=64)
    hashes = prefixes.block_hashes(begin.request or "", 0, 3)
    assert hashes == [b"before--", bytes.fromhex("00112233445566aa"), b"after---"]


def test_where_nothing_is_recorded_lengths_are_a_guess() -> None:
    requests = calls_of("a: L 600 c0 h0 -> 0\na: S 0+512\nb: L 600 c0 h256 -> 256").requests()
    prefixes = Prefixes(requests, block_size=32, chunk_size=None)
    a, b = ("a-cmpl-1-0-0123abcd", "b-cmpl-1-0-0123abcd")
    assert not prefixes.known
    assert prefixes.tokens(a, 0, 256) == prefixes.tokens(b, 0, 256)
    assert prefixes.tokens(a, 256, 288) != prefixes.tokens(b, 256, 288)


def test_a_store_has_the_room_that_it_was_seen_to_have() -> None:
    stored = [f"plan store {n * 64}+64 keys k{n}" for n in range(4)]
    roomy = calls_of("\n".join(["L 600 c0 h0 -> 0", *stored, "plan store 256+64 keys k0 present"]), chunk=64)
    assert room(events_of(roomy)) == (4, False)
    full = calls_of("\n".join(["L 600 c0 h0 -> 0", *stored, "evict k0", "plan store 256+64 keys k4"]), chunk=64)
    assert room(events_of(full)) == (4, True)
    emptied = calls_of("\n".join(["L 600 c0 h0 -> 0", *stored, "reset", *stored[:2]]), chunk=64)
    assert room(events_of(emptied)) == (4, False)


def test_errors_are_the_same_by_class_and_numbers() -> None:
    def error(text: str) -> dict[str, str]:
        return {"error": text}

    assert same(error("AssertionError: 256 vs 256 (in lmcache)"), error("AssertionError: 256 vs 256 (in the cache)"))
    assert not same(error("AssertionError: 256 vs 256"), error("AssertionError: 256 vs 512"))
    assert same(
        error("AssertionError: 256 (at lmcache.adapter:812 in load)"), error("AssertionError: 256 (at a.b:7 in load)")
    )
    assert not same(error("AssertionError: 1"), error("ValueError: 1"))
    assert not same({"returned": 1}, error("ValueError: 1"))
