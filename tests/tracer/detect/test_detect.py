"""The order of arrival, repetition and loss: none of them can change a verdict for the worse."""

from __future__ import annotations

import random

import pytest
from history import history, judge, rules_found
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.judgements import MAX_FINDINGS
from kvtrail.tracer.events.events import Event, Lookup
from kvtrail.tracer.model.findings import Unknown, Verdict

OK = "L 749 c0 h256 -> 256\nA 256\nS 256+48\nP\nL 760 c288 h512 -> 224\nL 760 c288 h512 -> 224\nA 224\nS 512+48\nend"
DRIFT = (
    "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nA 256\nL 749 c64 h700 -> 64\nA 63\nend"
)


def story(detector: Detector) -> tuple[object, ...]:
    (account,) = detector.accounts.values()
    found = [f.as_dict() for held in detector.findings.values() for f in held.values()]
    return account.as_dict(), detector.verdict(account), sorted(found, key=lambda f: f["id"])


@given(st.randoms(use_true_random=False), st.sampled_from([OK, DRIFT]))
def test_any_order_with_repetitions_gives_the_same_story(rng: random.Random, text: str) -> None:
    events = history(text)
    shuffled = [*events, *rng.choices(events, k=5)]
    rng.shuffle(shuffled)
    assert story(judge(shuffled)) == story(judge(events))


@given(st.data())
@settings(max_examples=200)
def test_losses_never_make_a_drift(data: st.DataObject) -> None:
    events = history(OK)
    kept = [event for event in events if data.draw(st.booleans())]
    assert rules_found(judge(data.draw(st.permutations(kept)))) == []


@given(st.data())
def test_losses_in_the_middle_make_the_verdict_unknown(data: st.DataObject) -> None:
    events = history(OK)
    lost = data.draw(st.integers(0, len(events) - 2))
    detector = judge(events[:lost] + events[lost + 1 :])
    (account,) = detector.accounts.values()
    assert detector.verdict(account) is Verdict.UNKNOWN
    why = detector.why_unknown(account)
    assert (why, detector.missing) == ((Unknown.LOST, 1) if lost else (Unknown.LATE, 0))


@pytest.mark.parametrize("end", ["end error", "end aborted", "end length_capped", "end"])
def test_a_verdict_says_nothing_of_the_outcome(end: str) -> None:
    """A caller who got HTTP 500 has a request that is `ok`, where all that was recorded of it agrees."""
    detector = judge(history(OK.removesuffix("end") + end))
    (account,) = detector.accounts.values()
    assert account.outcome == (end.removeprefix("end").strip() or "stopped")
    assert detector.verdict(account) is Verdict.OK


def test_history_rules_do_not_guess_across_a_gap() -> None:
    """The lookup that belongs to the allocation is lost: 224 allocated after an answer of 256 proves nothing."""
    events = history(OK)
    without = [e for e in events if not (e.kind == "kv.lookup" and e.epoch == 1)]
    detector = judge(without)
    assert rules_found(detector) == []
    assert detector.verdicts["alloc-mismatch", Verdict.UNKNOWN] == 1


def test_an_early_event_waits_only_for_the_grace_time() -> None:
    events = history(OK)
    detector = Detector()
    detector.feed([events[0], *events[2:]], at_ns=5)
    assert detector.accounts["engine", "cmpl-1-0-0123abcd"].lookups == 0
    detector.settle(before_ns=5)  # not yet
    assert detector.missing == 0
    detector.settle(before_ns=6)
    assert detector.missing == 1
    assert detector.accounts["engine", "cmpl-1-0-0123abcd"].lookups == 2


def test_while_an_event_waits_the_verdict_is_unknown() -> None:
    events = history(OK)
    detector = Detector()
    detector.feed([*events[:3], *events[4:]])
    (account,) = detector.accounts.values()
    assert detector.verdict(account) is Verdict.UNKNOWN
    detector.feed([events[3]])
    assert detector.verdict(account) is Verdict.OK


def test_the_same_number_on_another_span_makes_the_verdict_unknown() -> None:
    events = history(OK)
    assert isinstance(events[1], Lookup)
    other = replace(events[1], returned=100, span_id="f" * 16)
    for order in (
        [*events[:2], other, *events[2:]],
        [events[0], other, *events[1:]],
        [*events[2:], other, *events[:2]],
    ):
        detector = judge(order)
        (account,) = detector.accounts.values()
        assert detector.verdict(account) is not Verdict.OK
        assert not account.complete


def test_an_id_that_is_used_again_begins_a_new_account() -> None:
    first = history(OK)
    again = [
        replace(e, request_sequence=e.request_sequence + len(first), span_id=f"a{e.span_id[1:]}") for e in history(OK)
    ]
    detector = judge([*first, *again])
    (account,) = detector.accounts.values()
    assert rules_found(detector) == []
    assert (account.lookups, account.epoch, detector.verdict(account)) == (3, 1, Verdict.OK)


def test_two_engines_may_use_the_same_request_id() -> None:
    detector = judge([*history(OK, engine="a"), *history(DRIFT, engine="b", recorder="r2")])
    assert {key[0] for key in detector.findings} == {"b"}
    assert len(detector.accounts) == 2


def test_the_ledger_keeps_its_limit_and_lets_finished_requests_go_first() -> None:
    detector = Detector(max_requests=3)
    for number in range(10):
        open_or_ended = OK if number % 2 else OK.removesuffix("end")
        detector.feed(history(open_or_ended, request=f"r-{number}", recorder="r"))
        assert len(detector.accounts) <= 3
    # Even ones never ended: they stay until there are too many of them, then the oldest goes.
    assert [request for _, request in detector.accounts] == ["r-4", "r-6", "r-8"]


def test_a_request_that_comes_back_after_it_was_forgotten_is_unknown() -> None:
    events: list[Event] = history(OK)
    detector = Detector()
    detector.feed(events[:5])
    detector.forget(("engine", "cmpl-1-0-0123abcd"))
    detector.feed(events[5:])
    detector.settle()
    (account,) = detector.accounts.values()
    assert detector.verdict(account) is Verdict.UNKNOWN


def test_keys_of_two_processes_are_compared_in_whatever_order_they_come() -> None:
    events = history("<prefill> key k1 after k0 of tokens\n<decode> key k2 after k0 of tokens")
    for order in (events, events[::-1]):
        (held,) = judge(order).findings.values()
        (finding,) = held.values()
        assert (finding.rule, finding.engine) == ("key-mismatch", "decode")
        assert finding.numbers == {"key": "k2", "other": "k1", "parent": "k0"}


def test_a_deadline_waits_for_what_comes_late() -> None:
    """The completion comes last of all, an hour of heartbeats after its time."""
    events = history("L 600 c0 -> 599 async\nA 599\nR\nA 0\nS 599+1\nwait 3600\nb: start 9")
    for number, event in enumerate(events):
        if event.request and not event.request.startswith("b-"):
            assert rules_found(judge([*events[:number], *events[number + 1 :], event])) == []


def test_a_deadline_causes_no_finding_where_an_event_was_lost_after_the_last_one() -> None:
    """The completion is lost; the gap that it leaves is in the recorder's numbers, not in those of its request."""
    events = history("L 600 c0 -> 599 async\nA 599\nR\nb: start 300")
    lost = [event for event in events if event.kind != "kv.received"]
    assert rules_found(judge(lost, later_s=900)) == []
    later = history("L 600 c0 -> 599 async\nb: L 300 c0 h0 -> 0\nwait 1\nA 599", recorder="recorder")
    lost = [event for event in later if event.sequence != 2]  # another request's, and before the wait began
    assert rules_found(judge(lost, later_s=900)) == ["stuck-load"]


def test_of_a_request_that_drifts_in_every_epoch_only_some_findings_are_kept_apart() -> None:
    epoch = "P\nL 749 c336 h256 -> 256 cached\nA 0\n"
    detector = judge(history("L 749 c0 h256 -> 256\nA 256\nS 256+80\n" + epoch * 500))
    (held,) = detector.findings.values()
    assert MAX_FINDINGS <= len(held) < MAX_FINDINGS + 10
    assert sum(finding.count for finding in held.values() if finding.rule == "stale-lookup") == 500


def test_a_finding_that_is_seen_again_with_an_earlier_time_keeps_its_last_sighting() -> None:
    """Each engine has its own clock, and a clock may be set back."""
    events = history("L 749 c336 h256 -> 256 cached\n" * 3)
    first, second, third = (number for number, event in enumerate(events) if isinstance(event, Lookup))
    first_ns, last_ns = events[first].start_ns, events[second].start_ns
    events[third] = replace(events[third], start_ns=first_ns - 10**9, end_ns=first_ns - 10**9)
    (held,) = judge(events).findings.values()
    (finding,) = held.values()
    assert (finding.count, finding.first_ns, finding.last_ns) == (3, first_ns, last_ns)
