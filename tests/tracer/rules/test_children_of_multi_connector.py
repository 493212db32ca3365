"""The children of a MultiConnector share a request, and nothing else: not even where they are of one class."""

from __future__ import annotations

import pytest
from history import history, judge, rules_found

from kvtrail.tracer.events.events import Event, TransferEnd
from kvtrail.tracer.model.findings import Finding

ASKED = """
    @small L 600 c0 h{small} -> 0
    @large L 600 c0 h{large} -> 0
    @small A 0
    @large A 0
    @small S 0+600
"""
END = """
    @small S 600+1
    @small end
"""


def of_one_class(text: str, *, small: int = 0, large: int = 0) -> list[Event]:
    """Two OffloadConnectors: one with chunks of 64 tokens, the other with chunks of 256. The first one reports the end."""
    events = history(ASKED.format(small=small, large=large) + text + END, connector="OffloadConnector")
    for event in events:
        event.chunk_size = 64 if event.connector_id == "small" else 256
    return events


def found(events: list[Event]) -> list[Finding]:
    return [each for held in judge(events).findings.values() for each in held.values()]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("@small plan store 0+576\n@large plan store 0+512", None),
        ("@large plan store 0+512\n@small plan store 0+576", None),
        ("@small plan store 0+576\n@large plan store 0+256", {"held": 256, "wanted": 512}),
        ("@large plan store 0+512\n@small plan store 0+512", {"held": 512, "wanted": 576}),
        ("@large plan store 0+512\n@small plan store 0+320\n@small plan store 320+0", None),  # it has no room
        ("@large plan store 0+512", None),  # the other one stores nothing at all
    ],
)
def test_what_a_child_stores_is_measured_by_its_own_chunks(text: str, numbers: dict[str, int] | None) -> None:
    findings = found(of_one_class(text))
    assert [each.rule for each in findings] == ([] if numbers is None else ["store-gap"])
    if numbers is not None:
        assert findings[0].numbers == {"where": "at the end", "prompt": 600, "computed": 600, **numbers}


def test_the_end_may_be_reported_by_a_child_of_another_class() -> None:
    events = of_one_class("@large plan store 0+256")
    for event in events:
        if event.connector_id == "small":
            event.connector = "NixlConnector"
    (finding,) = found(events)
    assert (finding.rule, finding.connector) == ("store-gap", "OffloadConnector")


@pytest.mark.parametrize(
    ("text", "matched", "hole"),
    [
        ("@small plan store 0+576\n@large plan store 256+256", {}, (0, 256)),  # what the other stores fills no hole
        ("@small plan store 0+576\n@large plan store 256+256", {"small": 256}, (0, 256)),  # nor what it holds
        ("@small plan store 0+576\n@large plan store 256+256", {"large": 256}, None),
        ("@large plan store 0+512\n@small plan store 64+512", {}, (0, 64)),
    ],
)
def test_a_hole_in_what_a_child_stores_is_its_own(
    text: str, matched: dict[str, int], hole: tuple[int, int] | None
) -> None:
    holes = [(each.numbers["hole_from"], each.numbers["hole_to"]) for each in found(of_one_class(text, **matched))]
    assert holes == ([] if hole is None else [hole])


def test_each_child_numbers_its_own_transfers() -> None:
    """Both begin with 1: the end of the one is not that of the other."""
    text = """
        @small L 64 c0 -> 0
        @large L 64 c0 -> 0
        @small A 0 [1 2]
        @large A 0 [1 2]
        @small S 0+64 [1 2]
        @small plan store 0+64 [1 2] #1
        @large plan store 0+64 [1 2] #1
        {ends}
    """
    both = "@small done #1\n@large done #1"
    detector = judge(history(text.format(ends=both), connector="OffloadingConnector"))
    assert rules_found(detector) == []
    assert not any(held.evidence.jobs for held in detector.accounts.values())
    twice = history(text.format(ends="@small done #1\n@small done #1"), connector="OffloadingConnector")
    assert rules_found(judge(twice)) == ["stray-completion"]
    assert [each.job for each in twice if isinstance(each, TransferEnd)] == [("small", 1)] * 2


def test_a_store_of_one_child_is_no_obstacle_to_a_load_of_another() -> None:
    stored = "@small L 600 c0 -> 0\n@small A 0\n@small S 0+600\n@small plan store 0+512 #1\nP\n"
    for child, rules in (("small", ["load-store-overlap"]), ("large", [])):
        text = f"{stored}@{child} L 601 c0 -> 512 async\n@{child} A 512\n@{child} plan load 0+512 #2"
        assert rules_found(judge(history(text, connector="OffloadingConnector"))) == rules


@pytest.mark.parametrize("end", ["", "@off end\n"])
@pytest.mark.parametrize("answer", ["599 async", "later", "0"])
def test_a_report_that_any_child_may_have_made_accuses_no_child(end: str, answer: str) -> None:
    """The chosen one loads within the step; all of them are passed what one reports."""
    asked = f"@off L 600 c0 h256 -> 256\n@nixl L 600 c0 -> {answer}\n@off A 256\n@nixl A 0\n@off S 256+344\n{end}"
    (finding,) = found(history(f"{asked}@off R\n@nixl R"))
    assert (finding.rule, finding.connector, finding.count) == ("stray-completion", "", 1)
    alone = found(history(f"@off L 600 c0 h256 -> 256\n@off A 256\n@off S 256+344\n{end}@off R"))
    assert [(each.rule, each.connector) for each in alone] == [("async-declaration", "Connector")]
