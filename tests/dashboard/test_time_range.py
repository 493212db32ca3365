"""The time range: what an address names, what a person types, and how both are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrail.dashboard.content.time_range import (
    LATEST_NS,
    LEAST_NS,
    RANGES,
    TimeRange,
    of_query,
    parsed,
    typed,
)

S = 10**9
HOUR = 3600 * S
NOW = 1_795_287_600 * S
"""2026-11-21 19:00:00 UTC"""
HOUR_AGO = of_query({}, now_ns=NOW)


def at(text: str) -> int:
    moment = parsed(text, now_ns=NOW)
    assert moment is not None
    return moment


def test_the_usual_range_is_the_last_hour() -> None:
    assert TimeRange(NOW - HOUR, NOW, "now-1h to now") == HOUR_AGO
    assert HOUR_AGO.address == {"from": "now-1h", "to": "now"}


def test_an_address_is_relative_or_names_moments() -> None:
    earlier = of_query({"from": "now-2h", "to": "now-1h"}, now_ns=NOW)
    assert (earlier.since_ns, earlier.until_ns, earlier.relative) == (NOW - 2 * HOUR, NOW - HOUR, "now-2h to now-1h")
    assert of_query(earlier.address, now_ns=NOW + S) == TimeRange(
        NOW + S - 2 * HOUR, NOW + S - HOUR, "now-2h to now-1h"
    )
    fixed = of_query({"from": "2026-11-21T14:59:00Z", "to": "2026-11-21T15:00:00.250Z"}, now_ns=NOW)
    assert (fixed.until_ns - fixed.since_ns, fixed.relative) == (60 * S + S // 4, None)
    assert fixed.address == {"from": "2026-11-21T14:59:00Z", "to": "2026-11-21T15:00:00.250Z"}
    milliseconds = {"from": str(fixed.since_ns // 10**6), "to": str(fixed.until_ns // 10**6)}  # what alerts link to
    assert of_query(milliseconds, now_ns=NOW) == fixed
    until_now = of_query({"from": "2026-11-21T14:59:00Z"}, now_ns=NOW)
    assert (until_now.until_ns, until_now.relative) == (NOW, None)


@pytest.mark.parametrize(
    "query",
    [
        {"from": "yesterday"}, {"from": "now", "to": "now-1h"}, {"from": "now-1y"}, {"to": "2020-01-01T00:00:00Z"},
        {"from": "2026-11-21", "to": "9999-01-01"}, {"from": "1" * 400}, {"from": "now-1h", "to": "now-1h"},
        {"from": "2026-13-45"}, {"from": "99:99", "to": "now"}, {"from": ""},
        {"from": "9" * 13},
    ],
)  # fmt: skip
def test_an_address_that_says_nonsense_is_the_usual_range(query: dict[str, str]) -> None:
    assert of_query(query, now_ns=NOW) == HOUR_AGO


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("14:20 to 14:59", "2026-11-21 14:20", "2026-11-21 14:59"),
        ("14:20 - 14:59", "2026-11-21 14:20", "2026-11-21 14:59"),
        ("9:05 to 14:59:30.5", "2026-11-21 09:05", "2026-11-21 14:59:30.500"),
        ("2026-11-20 20:11:25 to 2026-11-21 03:00", "2026-11-20 20:11:25", "2026-11-21 03:00"),
        ("2026-11-20 14:20 to 14:59", "2026-11-20 14:20", "2026-11-20 14:59"),
        ("2026-11-20 to 2026-11-21", "2026-11-20", "2026-11-21"),
        ("18:30 to now", "2026-11-21 18:30", "now"),
        ("20:30 to 21:00", "2026-11-20 20:30", "2026-11-20 21:00"),
        ("18:50 to 20:10", "2026-11-20 18:50", "2026-11-20 20:10"),
        ("14:59", "2026-11-21 14:29", "2026-11-21 15:29"),
        ("2026-11-20 14:59", "2026-11-20 14:29", "2026-11-20 15:29"),
        ("2026-11-20T14:59:00+01:00", "2026-11-20 13:29", "2026-11-20 14:29"),
        ("now-2h", "now-2h", "now"),
        ("now - 2h to now - 1h", "now-2h", "now-1h"),
        ("90m", "now-90m", "now"),
        ("Last 2 hours", "now-2h", "now"),
    ],
)
def test_what_a_person_types(text: str, begin: str, end: str) -> None:
    held = typed(text, now_ns=NOW, shown=HOUR_AGO)
    assert (held.since_ns, held.until_ns) == (at(begin), at(end))
    assert (held.relative is not None) == begin.startswith("now")


@pytest.mark.parametrize("text", ["", "soon", "14:99", "15:00 to", "now+1h", "now-1h to yesterday", "a to b to c"])
def test_what_cannot_be_read_is_said_with_what_can(text: str) -> None:
    with pytest.raises(ValueError, match="14:20 to 14:59"):
        typed(text, now_ns=NOW, shown=HOUR_AGO)


def test_a_time_of_day_is_the_latest_that_has_been() -> None:
    assert at("18:59") == NOW - 60 * S
    assert at("19:01") == NOW - 24 * HOUR + 60 * S


def test_both_ends_have_their_dates() -> None:
    """24 hours read: 2026-11-20 20:11:25 to 20:11:25."""
    day = TimeRange(at("2026-11-20 20:11:25"), at("2026-11-21 18:11:25"))
    assert day.field() == "2026-11-20 20:11:25 to 2026-11-21 18:11:25"
    assert HOUR_AGO.field() == "now-1h to now"
    assert TimeRange(0, S).field() == "1970-01-01 00:00:00 to 1970-01-01 00:00:01"


@given(st.integers(0, LATEST_NS - 10 * S), st.integers(1000, 10**8))
def test_what_is_written_is_read_again(since_ms: int, length_ms: int) -> None:
    since_ns = since_ms // 10**6 * 10**6
    held = TimeRange(since_ns, min(LATEST_NS, since_ns + length_ms * 10**6))
    assert of_query(held.address, now_ns=NOW) == held
    assert typed(held.field(), now_ns=NOW, shown=HOUR_AGO) == held


@pytest.mark.parametrize("name", RANGES)
def test_a_quick_choice_is_known_again(name: str) -> None:
    chosen = of_query({"from": f"now-{RANGES[name]}", "to": "now"}, now_ns=NOW)
    assert chosen.choice == name
    assert TimeRange(chosen.since_ns, chosen.until_ns).choice is None
    assert chosen.until_ns - chosen.since_ns > LEAST_NS
