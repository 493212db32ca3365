"""An audit of the traces of two engines: one hands over to the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from served_pairs import DECODE, PREFILL, nixl

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.audit import Audit, audit
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.logs.event_spans import span_of
from kvtrail.tracer.reports.findings import as_text

LATE = f"{PREFILL}wait 30\nfreed expired\nsent\n{DECODE}<d> R\nread"


def traces(folder: Path, text: str) -> tuple[Path, Path]:
    """The trace of each engine: of the one that gives, and of the one that takes."""
    return write(folder / "p.jsonl", nixl(text), "engine"), write(folder / "d.jsonl", nixl(text), "d")


def write(path: Path, events: list[Event], engine: str) -> Path:
    spans = [span_of(event) for event in events if event.engine == engine]
    path.write_text(f"{otlp_json.spans_to_json_line(spans)}\n")
    return path


def rules(result: Audit) -> list[str]:
    return sorted(finding.rule for finding in result.findings)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_traces_of_both_sides_are_judged_as_pairs_in_any_order(tmp_path: Path, is_first: bool) -> None:
    paths = traces(tmp_path, LATE)
    result = audit(paths if is_first else paths[::-1])
    assert rules(result) == ["stale-handoff", "stale-handoff"]
    (sums,) = result.as_dict()["handoffs"]
    assert (sums["giver"], sums["taker"], sums["handoffs"], sums["tokens"]) == ("engine", "d", 1, 600)
    assert sums["outcomes"] == {"expired": 1, "loaded": 1}
    assert "gave 1 hand-off to d: 1 loaded, 1 kept until the lease ran out." in as_text(result)


def test_one_side_alone_says_what_it_knows(tmp_path: Path) -> None:
    given, taken = traces(tmp_path, LATE)
    alone = audit([given])
    assert rules(alone) == ["stale-handoff"]
    assert "gave 1 hand-off that no request here takes: 1 kept until the lease ran out." in as_text(alone)
    other = audit([taken])
    assert (rules(other), other.as_dict()["handoffs"]) == ([], [])


def test_an_engine_that_hands_nothing_over_is_not_spoken_of(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", nixl("L 600 c0 -> 0\nA 0\nS 0+600\nend"), "engine")
    result = audit([path])
    assert result.as_dict()["handoffs"] == []
    assert "hand-off" not in as_text(result)
