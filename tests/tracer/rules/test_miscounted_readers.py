"""What the engine that prefills alone can say of a count of its readers, and what it cannot."""

from __future__ import annotations

import pytest
from history import history, judge, rules_found

from kvtrail.tracer.events.events import Event, Read, Sent
from kvtrail.tracer.model.findings import Verdict

KEPT = """
    start 600
    L 600 c0 -> 0
    A 0
    S 0+600
    end delayed handoff computed 600 lease 30
"""
EARLY = KEPT + "read by r0 of 2\nread by r0 of 2\nsent"


def why_unknown(events: list[Event]) -> dict[str, int]:
    """Why the rule could not decide, and how often."""
    detector = judge(events)
    assert rules_found(detector) == []
    return {str(why.name): count for (rule, why), count in detector.unknown.items() if rule == "miscounted-readers"}


def test_one_reader_that_reports_twice_is_not_two() -> None:
    detector = judge(history(EARLY, connector="NixlConnector"))
    (finding,) = [each for held in detector.findings.values() for each in held.values()]
    assert finding.rule == "miscounted-readers"
    assert finding.numbers == {"readers": 1, "expected": 2, "reports": 2, "rank": 0}
    assert [each.kind for each in finding.witness] == ["kv.read", "kv.read", "kv.sent"]
    assert "when 1 of 2 readers had reported" in finding.explanation


def test_each_rank_counts_its_own_readers() -> None:
    """Two ranks prefill, and two read from each: a report to one of them is none to the other."""
    text = KEPT + "read by r0 of 2\nread by r1 of 2\nread by r2 of 2\nread by r2 of 2\nsent"
    events = history(text, connector="NixlConnector")
    reads = [each for each in events if isinstance(each, Read)]
    for of_other in reads[2:]:
        of_other.rank = 1
    (finding,) = [each for held in judge(events).findings.values() for each in held.values()]
    assert (finding.rule, finding.numbers["rank"], finding.numbers["readers"]) == ("miscounted-readers", 1, 1)
    reads[3].peer = "r3"
    assert rules_found(judge(events)) == []


def test_of_reports_that_disagree_the_smallest_number_counts() -> None:
    """Two engines may have been given one hand-off; each says how many ranks of its own read."""
    assert rules_found(judge(history(KEPT + "read by r0 of 3\nread by other of 1\nsent"))) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (EARLY.replace(" of 2", ""), "PROBE"),
        # an older vLLM does not say that the lease has run out
        (EARLY.replace("sent", "wait 31\nsent"), "VERSION"),
        (EARLY.replace(" lease 30", ""), "VERSION"),
    ],
)
def test_what_is_missing_decides_nothing(text: str, why: str) -> None:
    assert why_unknown(history(text)) == {why: 1}


def test_a_lease_that_has_run_out_needs_no_reader() -> None:
    """Whatever its length is said to be."""
    assert rules_found(judge(history(EARLY.replace("sent", "freed expired\nsent")))) == []


def test_a_lease_that_was_extended_has_not_run_out() -> None:
    text = EARLY.replace("read by r0 of 2\nread", "wait 20\nlease 20\nread by r0 of 2\nwait 18\nread")
    assert rules_found(judge(history(text, connector="NixlConnector"))) == ["miscounted-readers"]


def test_reports_to_a_worker_in_another_process_have_no_order() -> None:
    """Another report may have come before the blocks were given back."""
    events = history(EARLY, connector="NixlConnector")
    reads = [each for each in events if isinstance(each, Read)]
    for number, read in enumerate(reads):
        read.role, read.recorder, read.sequence, read.request_sequence = "worker", "worker", number, number
    (sent,) = [each for each in events if isinstance(each, Sent)]
    sent.sequence, sent.request_sequence = sent.sequence - len(reads), sent.request_sequence - len(reads)
    assert why_unknown(events) == {"ORDER": 1}


@pytest.mark.parametrize(
    ("ranks", "expected", "count"),
    [((0, 1), 2, 0), ((0, 1), 1, 1), ((0, 1, 2), 2, 1), ((0, 1, 0, 1), 1, 1), ((0, 0), 1, 0)],
)
def test_more_ranks_read_than_their_reports_say(ranks: tuple[int, ...], expected: int, count: int) -> None:
    """A rank that reads again is none more."""
    posted = "".join(f"xfer read posted by {rank} rank 0 peer p of {expected}\n" for rank in ranks)
    ended = "".join(f"xfer read done by {rank} rank 0 peer p\n" for rank in ranks)
    detector = judge(history("start 600\nL 600 c0 -> 599 async\nA 599\n" + posted + ended + "R"))
    found = [each for held in detector.findings.values() for each in held.values()]
    assert [(each.rule, each.count) for each in found] == [("miscounted-readers", 1)] * count
    assert detector.verdicts["miscounted-readers", Verdict.OK] == len(ranks) - count
