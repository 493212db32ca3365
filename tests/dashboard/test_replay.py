"""What the replay page says of a step, on real histories."""

from __future__ import annotations

import json

import pytest
from test_request import STALE, timeline_of

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.request import charts as request_charts
from kvtrail.dashboard.content.request import replay
from kvtrail.dashboard.content.request.account import facts as request_facts
from kvtrail.dashboard.content.request.account import findings_by_step

SUMS = """
L 749 c0 h256 -> 256 async
A 256
R
S 256+493
P
L 749 c0 h256 -> 256
A 256
S 256+493
end
"""


@pytest.fixture(scope="module")
def stale() -> Row:
    """vLLM's own span is the first step, the arrival the second."""
    return timeline_of(STALE)


def test_a_finding_belongs_to_the_step_that_completes_its_evidence(stale: Row) -> None:
    found = findings_by_step(stale)
    assert {step: [f["rule"] for f in findings] for step, findings in found.items()} == {8: ["stale-lookup"]}


def test_evidence_that_is_not_stored_any_more_is_placed_by_its_time(stale: Row) -> None:
    lost = {**stale, "steps": [step for step in stale["steps"] if step["span_id"] != stale["steps"][7]["span_id"]]}
    assert list(findings_by_step(lost)) == [7]
    assert list(findings_by_step({**stale, "steps": stale["steps"][8:]})) == [1]


def test_from_one_finding_to_the_next() -> None:
    found: dict[int, list[Row]] = {3: [], 8: []}
    at = [replay.neighbours(found, step=step) for step in (1, 3, 5, 8, 9)]
    assert at == [(None, 3), (None, 8), (3, 8), (3, None), (8, None)]
    assert replay.neighbours({}, step=1) == (None, None)


def test_the_account_after_a_step_and_what_it_changed(stale: Row) -> None:
    rows = {row["name"]: row for row in replay.changes(stale, step=8)}
    assert {name: row["other"] for name, row in rows.items() if row["differs"]} == {
        "returned": "0",
        "lookups": "2",
    }
    assert (rows["returned"]["value"], rows["computed"]["value"], rows["allocated"]["value"]) == ("256", "384", "–")  # noqa: RUF001
    assert "refused" not in rows


def test_the_sums_are_those_of_the_request_page_in_its_words() -> None:
    timeline = timeline_of(SUMS)
    rows = {row["label"]: row["value"] for row in replay.changes(timeline, step=len(timeline["steps"]))}
    facts = request_facts(timeline["request"])
    assert (rows["waited for KV"], rows["recomputed"], rows["loads"]) == ("1 ms in 1 load", "492", "2")
    assert {
        "waited 1 ms for KV in 1 load",
        "2 loads",
        "492 tokens recomputed after preemptions",
    } <= {*facts}
    changed = [
        {row["label"] for row in replay.changes(timeline, step=step) if row["differs"]}
        for step in range(1, len(timeline["steps"]) + 1)
    ]
    for name in ("loads", "waited for KV", "recomputed"):
        assert any(name in each for each in changed), name
    assert not {"loads", "waited for KV", "recomputed"} & {row["label"] for row in replay.changes(timeline, step=2)}


def test_before_the_arrival_there_is_no_account(stale: Row) -> None:
    assert replay.changes(stale, step=1) == []
    assert not any(row["differs"] for row in replay.changes(stale, step=2))


def test_another_services_span_leaves_the_account_as_it_was(stale: Row) -> None:
    moved = {**stale, "steps": [*stale["steps"][1:4], stale["steps"][0], *stale["steps"][4:]]}
    rows = replay.changes(moved, step=4)
    assert [row["value"] for row in rows] == [row["value"] for row in replay.changes(moved, step=3)]
    assert not any(row["differs"] for row in rows)


def test_what_is_said_seldom_is_said_when_it_matters() -> None:
    healed = timeline_of("L 750 c384 h256 -> 0 healed 256\nend")
    rows = {row["name"]: row["value"] for row in replay.changes(healed, step=len(healed["steps"]))}
    assert (rows["refused"], rows["outcome"]) == ("1", "stopped")
    assert "complete" not in rows


@pytest.mark.parametrize(
    ("wanted", "step"),
    [
        ("", 1),
        ("1", 1),
        ("7", 7),
        (7, 7),
        ("900", 9),
        (900, 9),
        ("0", 1),
        ("-3", 1),
        ("x", 1),
        ("٣", 3),
        ("9" * 5000, 1),
    ],
)
def test_an_address_names_a_step_there_is(wanted: str | int, step: int) -> None:
    assert replay.clamped(wanted, steps=9) == step


def test_titles_and_facts(stale: Row) -> None:
    now_ns = stale["request"]["started_ns"]
    assert replay.title(stale, step=8) == "Step 8 of 9: lookup"
    assert replay.facts(stale, step=8, now_ns=now_ns) == [
        "01:24:36.006 UTC", "6 ms after the arrival", "took 10 µs", "after preemption 1", "scheduler 0",
    ]  # fmt: skip
    assert replay.facts(stale, step=1, now_ns=now_ns)[1:] == ["1 ms before the arrival", "took 11 ms"]


def test_a_line_marks_the_step(stale: Row) -> None:
    def drawn(at: int) -> Row:
        as_data: Row = json.loads(request_charts.over_time(stale, [], at=at, dark=False).to_json())
        return as_data

    lines = [layer for layer in drawn(8)["layer"] if layer["data"].get("name") == "here"]
    assert [row["step"] for layer in lines for row in layer["data"]["values"]] == [8]
    assert drawn(8) == drawn(8) != drawn(7)
