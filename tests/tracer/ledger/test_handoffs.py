"""A pair is judged once, whichever side is heard first, and a report that is late is no report that is lost."""

from __future__ import annotations

import itertools

import pytest
from history import history, judge, rules_found

from kvtrail.dashboard.content.request import handoffs
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.handoffs import HandOffs
from kvtrail.tracer.serve.api.requests import handoffs_of

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


def test_each_side_leads_to_the_other_as_far_as_it_is_known() -> None:
    events = history(PREFILL.format(digest="a") + DECODE, connector="NixlConnector")
    known = judge(events).handoffs
    given = [each for each in events if each.engine != "d"]
    taken = [each for each in events if each.engine == "d"]
    for side, words in ((given, "Handed over to cmpl-1-0"), (taken, "Prefilled as cmpl-1-0")):
        (link,) = handoffs_of(side, known)
        assert handoffs({"handoffs": [link.model_dump()]}) == [
            (words, {"request": "cmpl-1-0-0123abcd", "engine": link.engine})
        ]
        (alone,) = handoffs_of(side, HandOffs())
        assert handoffs({"handoffs": [alone.model_dump()]}) == [
            ("Handed over as h1; the other engine has reported nothing of it", None)
        ]


WRITTEN = """
    gives h1 600/600 of a
    end delayed length_capped handoff computed 600 lease 30
    xfer write posted 19 peer d for b
"""
TAKES_ANOTHER = """
    <d> b: start 600
    <d> b: takes h2 600/600 of {digest}
    <d> b: sent registration peer p
"""


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(("digest", "rules"), [("b", ["crossed-handoff"]), ("a", [])])
def test_a_write_to_a_request_of_another_prompt_is_found_whichever_side_is_heard_first(
    digest: str, rules: list[str], order: tuple[int, ...]
) -> None:
    """The one that writes is heard in two parts: its worker has a recorder of its own."""
    events = history(WRITTEN + TAKES_ANOTHER.format(digest=digest), connector="NixlPushConnector")
    parts: list[list[Event]] = [[], [], []]
    for event in events:
        parts[0 if event.engine == "d" else 1 if event.kind == Kind.XFER else 2].append(event)
    for event in parts[1]:
        event.recorder, event.sequence, event.request_sequence = "worker", 0, 0
    detector = judge([event for part in order for event in parts[part]])
    assert rules_found(detector) == rules
    if rules:
        (finding,) = next(iter(detector.findings.values())).values()
        assert (finding.request, finding.numbers["other"]) == ("b-cmpl-1-0-0123abcd", "cmpl-1-0-0123abcd")
        assert "it wrote that into the blocks of this request" in finding.explanation


@pytest.mark.parametrize(
    ("after", "rules"),
    [
        ("xfer write done peer d for -\nwait 60", []),
        ("wait 30\nfreed expired\nsent\nwait 60", []),
        ("xfer write failed peer d for - !ERR\nwait 30\nfreed expired\nsent\nwait 60", []),
        ("wait 30\nfreed expired\nsent\nxfer write done peer d for -\nwait 60", ["stale-handoff"]),
    ],
)
def test_who_writes_itself_needs_no_report(after: str, rules: list[str]) -> None:
    """The write has ended before the blocks are given back, or it is known that it failed, or not how it ended; only one that
    is known to have ended later may have written what is another's."""
    given = PREFILL.format(digest="a").partition("wait")[0] + "xfer write posted 19 peer d for -\n"
    detector = judge(history(given + DECODE + after, connector="NixlPushConnector"))
    assert rules_found(detector) == rules
    if rules:
        (finding,) = next(iter(detector.findings.values())).values()
        assert "its own write of them to the other engine ended" in finding.explanation
