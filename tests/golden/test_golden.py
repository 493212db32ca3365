"""Recorded histories keep their verdicts, whatever the order of their lines; those that drift are as small as can be."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from minimal import assert_minimal, findings

from kvtrail.tracer.events import semconv
from kvtrail.tracer.history.audit import Audit, audit
from kvtrail.tracer.history.history import load
from kvtrail.tracer.history.minimize import minimize
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.model.findings import Verdict

HERE = Path(__file__).parent
ORDERS = 100
MAX_BYTES = 60_000


@dataclass(frozen=True)
class Golden:
    """A line of the table."""

    name: str
    verdicts: Counter[Verdict]
    findings: list[str]
    story: str

    @property
    def path(self) -> Path:
        return HERE / f"{self.name}.jsonl"


def table() -> Iterator[Golden]:
    rows = [line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| ")]
    for line in rows[2:]:  # below the head
        name, ok, drift, unknown, found, story = (cell.strip() for cell in line.strip("|").split("|"))
        counts = zip((Verdict.OK, Verdict.DRIFT, Verdict.UNKNOWN), (ok, drift, unknown), strict=True)
        rules = [] if found == "none" else found.split(", ")
        yield Golden(name, Counter({verdict: int(count) for verdict, count in counts}), rules, story)


GOLDEN = list(table())
DRIFTING = [golden for golden in GOLDEN if golden.findings]


def without_line_numbers(result: Audit) -> dict[str, object]:
    """All that an audit says, except the numbers of lines."""
    return {**result.as_dict(), "unreadable": len(result.unreadable)}


def test_every_trace_is_in_the_table_with_its_story_and_is_small() -> None:
    assert {golden.path for golden in GOLDEN} == set(HERE.glob("*.jsonl"))
    assert {Verdict.OK, Verdict.DRIFT, Verdict.UNKNOWN} == {v for golden in GOLDEN for v in +golden.verdicts}
    for golden in GOLDEN:
        assert golden.story
        assert golden.path.stat().st_size < MAX_BYTES


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_a_trace_is_judged_as_recorded_in_any_order_of_its_events(golden: Golden, tmp_path: Path) -> None:
    recorded = audit([golden.path])
    assert recorded.verdicts == golden.verdicts
    assert [finding.rule for finding in recorded.findings] == golden.findings
    lines = [otlp_json.spans_to_json_line([span]) for _, span in load([golden.path]).moments]
    lines += [line for line in golden.path.read_text().splitlines() if not _is_json(line)]
    shuffled = tmp_path / "shuffled.jsonl"
    for seed in range(ORDERS):
        random.Random(seed).shuffle(lines)
        shuffled.write_text("\n".join(lines))
        assert without_line_numbers(audit([shuffled])) == without_line_numbers(recorded)


@pytest.mark.parametrize("golden", DRIFTING, ids=lambda golden: golden.name)
def test_a_drifting_trace_is_cut_down_to_what_cannot_be_left_out(golden: Golden) -> None:
    assert_minimal(minimize(load([golden.path])))


def test_the_minimized_trace_is_minimal() -> None:
    recording = load([HERE / "stale-lookup.jsonl"])
    assert minimize(recording).history == recording


def test_the_whole_and_the_part_show_the_same_drift() -> None:
    """The one with every step, the other without: recorded twice, so ids and times differ, and the contradiction does not."""
    (whole,), (part,) = (findings(load([HERE / f"stale-lookup{end}.jsonl"]).events).values() for end in ("-whole", ""))
    assert (part.request, part.epoch, part.numbers) == (whole.request, whole.epoch, whole.numbers)


def test_the_traces_are_what_their_stories_say() -> None:
    """Recorded again, they must still show what they are there for."""
    events = {golden.name: load([golden.path]).events for golden in GOLDEN}
    kinds = {name: Counter(event.kind for event in recorded) for name, recorded in events.items()}
    assert kinds["preempted"][semconv.Kind.PREEMPT] == 1
    assert kinds["loaded-again"][semconv.Kind.PREEMPT] == 2
    again = [e for e in events["loaded-again"] if e.kind == semconv.Kind.ALLOC and e.epoch == 1]
    assert [e.numbers()["allocated"] > 0 for e in again] == [True, True]
    assert [e.kind for e in events["loaded-asynchronously"]].count(semconv.Kind.RECEIVED) == 1
    gone = [e.kind for e in events["aborted"] if e.request == "gone"]
    assert gone.index(semconv.Kind.REQUEST) < gone.index(semconv.Kind.RECEIVED)
    assert len(load([HERE / "truncated.jsonl"]).unreadable) == 1
    assert audit([HERE / "gap.jsonl"]).missing > 0


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
