"""A pair is judged once, whichever side is heard first, and a report that is late is no report that is lost."""

from __future__ import annotations

import itertools

import pytest
from history import history, judge, rules_found

from kvtrail.tracer.events.events import Event

PREFILL = """
    start 600
    L 600 c0 -> 0
    A 0
    S 0+600
    gives h1 600/600 of {digest}
    end delayed length_capped handoff computed 600 lease 30
    wait 30
    freed expired
    sent
"""
DECODE = """
    <d> start 600
    <d> takes h1 600/600 of a
    <d> L 600 c0 -> 599 async
    <d> A 599
    <d> R
"""


def sides(text: str) -> list[list[Event]]:
    """The events of each engine."""
    events = history(text, connector="NixlConnector")
    return [[each for each in events if (each.engine == "d") is is_decode] for is_decode in (False, True)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
@pytest.mark.parametrize(
    ("digest", "after", "rules"),
    [
        ("b", "read", ["crossed-handoff", "late-read", "stale-handoff"]),
        ("a", "read", ["late-read", "stale-handoff"]),
        ("a", "wait 1", ["unacknowledged-handoff"]),
    ],
)
def test_a_pair_is_judged_once_whichever_side_is_heard_first(
    digest: str, after: str, rules: list[str], order: tuple[int, int]
) -> None:
    both = sides(PREFILL.format(digest=digest) + DECODE + after)
    detector = judge([event for side in order for event in both[side]], later_s=30)
    assert rules_found(detector) == rules


def test_a_report_that_comes_long_after_the_lease_is_late_and_not_lost() -> None:
    detector = judge(
        history(PREFILL.format(digest="a") + "wait 60\n" + DECODE + "wait 8\nread\nwait 60", connector="NixlConnector")
    )
    assert rules_found(detector) == ["late-read", "stale-handoff"]
