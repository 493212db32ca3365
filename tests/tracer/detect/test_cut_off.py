"""Requests that were open when their engine ended: closed, and never judged by that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from history import goodbyes, history, judge, rules_found
from msgspec.structs import replace

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import KEYS, CutOff, Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import Unknown
from kvtrail.tracer.serve.api.requests import timeline


def the_account(detector: Detector) -> Account:
    (account,) = detector.accounts.values()
    return account


def outcome_of(events: Sequence[Event]) -> tuple[str, str | None, bool]:
    """Status and outcome of the only request, and whether it counts as ended."""
    detector = judge(events)
    account = the_account(detector)
    return account.status, account.outcome, bool(detector.finished)


def test_it_is_abandoned_and_nothing_is_known_to_be_well() -> None:
    events = history("L 700 c0 h0 -> 0\nA 0\nS 0+700\ncut off")
    events += goodbyes(events)
    detector = judge(events)
    account = the_account(detector)
    assert (account.status, account.outcome, account.ended_ns) == ("abandoned", semconv.CUT_OFF, events[-2].end_ns)
    assert (account.error, account.complete, detector.missing) == (None, True, 0)
    assert detector.why_unknown(account) is Unknown.OPEN
    assert rules_found(detector) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("L 300 c0 h256 -> 256\nA 256\nload 100/256\n", "incomplete-load"),
    ],
)
def test_what_is_wrong_at_the_end_of_a_request_is_not_when_it_is_cut_off(text: str, rule: str) -> None:
    assert rules_found(judge(history(f"{text}\nend"))) == [rule]
    assert rules_found(judge(history(f"{text}\ncut off"))) == []


def test_an_engine_that_hung_and_was_killed_left_no_request_waiting() -> None:
    """Nothing is heard while it hangs, and what ended the waiting may be lost with it."""
    load = "L 700 c0 h256 -> 256 async\nA 256"
    assert rules_found(judge(history(f"{load}\nwait 700\ncut off"))) == ["stuck-load"]
    events = history(f"{load}\nwait 700 silent\ncut off")
    assert rules_found(judge([*events, *goodbyes(events)])) == []


def test_one_that_failed_remains_so() -> None:
    status, outcome, is_over = outcome_of(history("L 700 c0 -> !KeyError: 'x'\ncut off"))
    assert (status, outcome, is_over) == ("failed", semconv.CUT_OFF, True)


def test_one_that_had_ended_has_ended() -> None:
    """Its export process was replaced, say, and does not know."""
    assert outcome_of(history("L 700 c0 h0 -> 0\nA 0\nend\ncut off"))[:2] == ("finished", "stopped")


def test_one_that_goes_on_is_open_again() -> None:
    """Not all was over."""
    assert outcome_of(history("L 700 c0 h0 -> 0\nA 0\ncut off\nS 0+700")) == ("running", None, False)
    events = history("L 700 c0 h0 -> 0\nA 0\ncut off\nS 0+700\nend")
    assert outcome_of(events) == ("finished", "stopped", True)


def test_the_goodbye_alone_cuts_off_too() -> None:
    events = history("L 700 c0 h0 -> 0\nA 0")
    assert outcome_of([*events, *goodbyes(events)]) == ("abandoned", semconv.CUT_OFF, True)


def test_a_root_that_comes_after_the_goodbye_says_the_same() -> None:
    *events, root = history("L 700 c0 h0 -> 0\nA 0\ncut off")
    (goodbye,) = goodbyes(events)
    assert outcome_of([*events, goodbye, replace(root, sequence=goodbye.sequence + 1)]) == (
        "abandoned",
        semconv.CUT_OFF,
        True,
    )


def a_root_span(error: str | None, **changes: Any) -> Span:
    attributes = {
        semconv.SEQUENCE.key: 7,
        semconv.REQUEST_ID.key: "r-1",
        KEYS["outcome"]: semconv.CUT_OFF,
        **changes,
    }
    return Span(
        trace_id="ab" * 16,
        span_id="cd" * 8,
        parent_id="",
        name=Kind.REQUEST,
        start_ns=1,
        end_ns=2,
        attributes=attributes,
        resource={semconv.ENGINE_ID.key: "e", semconv.RECORDER_ID.key: "rec"},
        scope=semconv.SCOPE,
        error=error,
    )


def a_root(error: str | None, **changes: Any) -> Event | None:
    return decode.from_span(a_root_span(error, **changes))


def test_its_root_is_read_as_what_it_is() -> None:
    event = a_root(semconv.CUT_OFF_REASON)
    assert isinstance(event, CutOff)
    assert (event.outcome, event.error) == (semconv.CUT_OFF, None), "the status of a root is no call that raised"
    other = a_root(None, **{KEYS["outcome"]: "stopped"})
    assert other is not None
    assert other.kind is Kind.REQUEST


def test_its_timeline_shows_no_call_that_raised() -> None:
    """The page of a lost request said "It raised. the engine ended before the request did"."""
    (step,) = timeline({"engine": "e", "request": "r-1"}, [a_root_span(semconv.CUT_OFF_REASON)], []).steps
    assert (step.error, step.foreign) == (None, False)
