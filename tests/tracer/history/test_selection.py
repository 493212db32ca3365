"""Requests and moments as people name them."""

from __future__ import annotations

import pytest
from history import START_NS, history

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.selection import NotInHistory, moment, requests_named, through

SPAN = Span("", "", "", "", 0, 0, {}, {})


def output(*requests: tuple[str, str]) -> History:
    """A history of these requests, by engine and id."""
    events: list[Event] = []
    for engine, request in requests:
        events += history("L 749 c0 h0 -> 0", engine=engine, request=request, recorder=engine)
    return History(moments=tuple((event, SPAN) for event in events))


HISTORY = output(("e", "chat-1-0123abcd"), ("e", "chat-12-4567abcd"), ("e", "other-99999999"))


@pytest.mark.parametrize(
    ("text", "request_id"),
    [
        ("chat-1-0123abcd", "chat-1-0123abcd"),
        ("chat-1", "chat-1-0123abcd"),  # the external id of one, and the beginning of two
        ("chat-12", "chat-12-4567abcd"),
        ("chat-12-4", "chat-12-4567abcd"),
        ("o", "other-99999999"),
    ],
)
def test_a_request_by_its_id_the_external_one_or_a_beginning(text: str, request_id: str) -> None:
    assert requests_named(HISTORY, text) == (("e", request_id),)


def test_one_request_may_pass_several_engines() -> None:
    passed = output(("prefill", "chat-1-0123abcd"), ("decode", "chat-1-89abcdef"))
    both = (("prefill", "chat-1-0123abcd"), ("decode", "chat-1-89abcdef"))
    assert requests_named(passed, "chat-1") == both
    assert requests_named(passed, "ch") == both
    assert requests_named(passed, "chat-1-8") == both[1:]


def test_a_beginning_of_several_is_no_name() -> None:
    with pytest.raises(NotInHistory, match=r"'chat' fits 2 requests: chat-1, chat-12$"):
        requests_named(HISTORY, "chat")


@pytest.mark.parametrize("text", ["", "hat-1", "chat-1-0123abcde"])
def test_an_unknown_name_is_reported_with_the_known_ones(text: str) -> None:
    with pytest.raises(
        NotInHistory, match=f"there is no request '{text}'; there are 3 requests: chat-1, chat-12, other$"
    ):
        requests_named(HISTORY, text)


def test_of_many_requests_the_first_are_named() -> None:
    many = output(*(("e", f"r{n}-0123abcd") for n in range(9)))
    with pytest.raises(NotInHistory, match=r"9 requests: r0, r1, r2, r3, r4 and 4 more$"):
        requests_named(many, "x")


@pytest.mark.parametrize(
    ("text", "after_ns"),
    [
        ("+0", 0),
        ("+12.5", 12_500_000_000),
        ("+0.000001", 1000),
        ("2025-12-03T01:24:36", 0),
        ("2025-12-03 01:24:36.250", 250_000_000),
        ("2025-12-03T01:24:36Z", 0),
        ("2025-12-03T02:24:36+01:00", 0),
        ("01:24:37", 10**9),
        ("01:24:36.005", 5_000_000),
        ("2025-12-03", -(1 * 3600 + 24 * 60 + 36) * 10**9),
    ],
)
def test_moments(text: str, after_ns: int) -> None:
    assert moment(HISTORY, text) == START_NS + after_ns


@pytest.mark.parametrize("text", ["", "soon", "+", "+x", "+nan", "+inf", "12.5", "25:00:00", "2025-13-01"])
def test_what_is_no_time_is_reported_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(NotInHistory) as error:
        moment(HISTORY, text)
    assert str(error.value).startswith(f"{text!r} is no time; write 2025-12-03T01:24:36 or 01:24:36.250 (UTC)")


def test_a_millisecond_is_whole() -> None:
    assert through(START_NS + 5_000_000) == START_NS + 5_999_999
    assert through(START_NS + 5_400_000) == START_NS + 5_999_999
