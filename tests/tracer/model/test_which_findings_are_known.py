"""Which findings are known."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.tracer.model.known import NEVER_NS, Known, KnownFindings, Place

NOW = 10**18
ENGINES = {"e-1": {"name": "alpha", "version": "0.32.0", "kvtrail": "0.1.0"}}
PLACE = Place("stale-lookup", "e-1", "LMCache")


def known(**changes: Any) -> Known:
    return Known(**{"rule": "stale-lookup", "why": "known", **changes})


@pytest.mark.parametrize(
    ("selectors", "covers"),
    [
        ({}, True),
        ({"rule": "no-token-left"}, False),
        ({"engine": "e-1"}, True),
        ({"engine": "alpha"}, True),
        ({"engine": "beta"}, False),
        ({"connector": "LMCache"}, True),
        ({"connector": "NixlConnector"}, False),
        ({"version": "0.32.0"}, True),
        ({"version": "0.1.0"}, True),
        ({"version": "0.31.0"}, False),
        ({"engine": "alpha", "connector": "LMCache", "version": "0.32.0"}, True),
        ({"engine": "beta", "connector": "LMCache"}, False),
    ],
)
def test_an_entry_covers_what_meets_all_that_it_gives(selectors: dict[str, str], covers: bool) -> None:
    assert known(**selectors).covers(PLACE, ENGINES["e-1"]) is covers


def test_what_an_engine_does_not_say_of_itself_meets_no_version() -> None:
    assert not known(version="0.32.0").covers(PLACE, {})


def test_what_has_ended_covers_nothing_and_of_several_the_first_is_named() -> None:
    some = [known(until_ns=NOW, why="over"), known(until_ns=NOW + 1, why="short"), known(why="for good")]
    now = KnownFindings(some, ENGINES, at_ns=NOW)
    assert (named := now.of(PLACE)) is not None
    assert named.as_dict() == {"why": "short", "until": None}
    assert now.until_ns == NOW + 1
    assert now.of(PLACE._replace(rule="no-token-left")) is None
    assert KnownFindings(some[:1], ENGINES, at_ns=NOW).of(PLACE) is None
    assert KnownFindings(some[2:], ENGINES, at_ns=NOW).until_ns == NEVER_NS
