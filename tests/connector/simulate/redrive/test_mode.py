"""`kvtrail replay --engine`, as its user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from recordings import STALE

from kvtrail.__main__ import main
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.run import play
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.ingest import otlp_json

FAULTY = "Faulty:stale-lookup:OffloadConnector"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text(otlp_json.spans_to_json_line(play(STALE, configuration(FAULTY, {})).spans))
    return path


def replay(trace: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", str(trace), "--engine", *arguments])


def test_the_faulty_connector_shows_the_finding_again(trace: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    result = replay(trace, "--connector", FAULTY, "-o", str(again))
    assert result.exit_code == 1, result.output
    assert "the recorded finding appears again (stale-lookup for 0-bug-" in result.output
    assert "of them the same (100%)" in result.output
    assert "The engine died after" in result.output
    assert "Mismatch in tokens to load" in result.output
    assert [f.rule for f in audit([again]).findings] == [f.rule for f in audit([trace]).findings] == ["stale-lookup"]


def test_the_recorded_class_without_the_fault_shows_where_it_diverges(trace: Path) -> None:
    result = replay(trace)
    assert result.exit_code == 0, result.output
    assert "the recorded findings do not appear" in result.output
    assert "First divergence: request 0-bug-" in result.output
    recorded, now = (line for line in result.output.splitlines() if line.startswith(("  recorded:", "  this time:")))
    assert "answered 256, from memory" in recorded
    assert "answered 0" in now


def test_one_document_for_machines(trace: Path) -> None:
    result = replay(trace, "--connector", FAULTY, "--json")
    document = json.loads(result.stdout)
    assert document["lookups"]["recorded"] == document["lookups"]["same"] > 0
    assert document["divergence"] is None
    assert [rule for rule, _ in document["same_findings"]] == ["stale-lookup"]
    assert document["error"].startswith("AssertionError: Mismatch")
    assert document["scenario"]["arrivals"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--request", "r"], "--engine drives the whole history"),
        (["--connector", "NoSuchConnector"], "vLLM knows no connector 'NoSuchConnector'"),
        (["--recorder", "nobody"], "no recorder or engine 'nobody' is in it"),
        (["--config", "nothing"], "it is no JSON"),
        (["--config", '{"chunk_size": 7}'], "chunk_size"),
        (["-o", "/nowhere/at/all.jsonl"], "/nowhere/at/all.jsonl: No such file or directory"),
    ],
)
def test_what_cannot_be_is_said(trace: Path, arguments: list[str], said: str) -> None:
    result = replay(trace, *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_nothing_is_written_over_by_accident(trace: Path, tmp_path: Path) -> None:
    assert "is one of the files to read" in replay(trace, "-o", str(trace), "--force").output
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    assert "--force overwrites it" in replay(trace, "-o", str(there)).output
    assert there.read_text() == "mine"


def test_options_of_the_one_are_refused_by_the_other(trace: Path) -> None:
    result = CliRunner().invoke(main, ["replay", str(trace), "--connector", "OffloadConnector"])
    assert result.exit_code == 2
    assert "are for --engine" in result.output
