"""`kvtrail replay --against`, as its user sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from recorded_runs import play_once
from recordings import STALE

from kvtrail.__main__ import main
from kvtrail.connector.registration import configuration
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.ingest import otlp_json

FAULTY = "Faulty:stale-lookup:OffloadConnector"
GOLDEN = Path(__file__).parents[3] / "golden"
LOG = """\
(EngineCore_DP0 pid=7703) [2025-12-03 01:24:36,395] LMCache INFO: Reqid: cmpl-bench-97810623-16-0, Total tokens 10009, \
LMCache hit tokens: 0, need to load: 0, num_computed_tokens 0 (vllm_v1_adapter.py:1512:lmcache.integration.vllm)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text(otlp_json.spans_to_json_line(play_once(STALE, configuration(FAULTY, {})).spans))
    return path


def replay(trace: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", str(trace), *arguments])


def test_the_faulty_connector_shows_the_finding_again(trace: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    result = replay(trace, "--against", FAULTY, "-o", str(again))
    assert result.exit_code == 1, result.output
    assert f"driven again with {FAULTY} instead of OffloadConnector" in result.output
    assert "the recorded finding appears again (stale-lookup for 0-bug-" in result.output
    assert re.search(r": \d+ same, 0 different, 0 not comparable\.", result.output)
    assert "The engine died after" in result.output
    assert "Mismatch in tokens to load" in result.output
    assert [f.rule for f in audit([again]).findings] == [f.rule for f in audit([trace]).findings] == ["stale-lookup"]


def test_the_recorded_class_without_the_fault_shows_where_it_differs(trace: Path) -> None:
    result = replay(trace, "--against", "recorded")
    assert result.exit_code == 0, result.output
    assert "the recorded findings do not appear" in result.output
    first = result.output.partition("The first difference:\n")[2].splitlines()
    assert re.match(r"  #\d+ lookup of 0-bug-\d+ \(after preemption 1\), at \d\d:\d\d:\d\d\.\d{3}$", first[0])
    assert [line.split()[0] for line in first[1:4]] == ["asked", "recorded", "this"]
    assert first[2].endswith("256 matched, answered 256, from memory")
    assert first[3].endswith("256 matched, answered 0")
    assert first[4].strip() == "The recorded answer breaks stale-lookup, this one breaks no rule."


def test_one_document_for_machines(trace: Path) -> None:
    result = replay(trace, "--against", FAULTY, "--json")
    document = json.loads(result.stdout)
    assert document["lookups"]["recorded"] == document["lookups"]["same"] > 0
    assert document["first_difference"] is None
    assert [rule for rule, _ in document["same_findings"]] == ["stale-lookup"]
    assert document["error"].startswith("AssertionError: Mismatch")
    assert document["scenario"]["arrivals"]
    assert {each["call"] for each in document["answers"]} == {"lookup", "allocation"}


def test_a_recording_without_faults(tmp_path: Path) -> None:
    """The faulty connector shows its fault, and another chunk size is another policy, which is no drift."""
    well = tmp_path / "well.jsonl"
    well.write_text(otlp_json.spans_to_json_line(play_once(STALE, configuration("OffloadConnector", {})).spans))
    worse = replay(well, "--against", FAULTY)
    assert worse.exit_code == 1
    assert "The recorded answer breaks no rule, this one breaks stale-lookup." in worse.output
    other = replay(well, "--against", "OffloadConnector", "--config", '{"chunk_size": 64}')
    assert other.exit_code == 0
    assert "The recorded answer breaks no rule, this one breaks no rule." in other.output
    assert "All differences: #" in other.output


def test_where_nothing_can_be_compared_it_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.connector.simulate.redrive.comparison._pairs", lambda *_: [])
    result = replay(GOLDEN / "preempted.jsonl", "--against", "OffloadConnector")
    assert (result.exit_code, "Inconclusive" in result.output) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--against", "recorded", "--request", "r"], "--against drives the whole history"),
        (["--against", "OffloadConnector", "--request", "x"], "--against drives the whole history"),
        (["--config", "{}"], "--config, --recorder, --output and --json go with --against"),
        (["--against", "NoSuchConnector"], "vLLM knows no connector 'NoSuchConnector'"),
        (["--against", "NoSuchConnector"], "A class of your own is module:Class"),
        (["--against", "no_such_package:It"], "No module named 'no_such_package'"),
        (["--against", "recorded", "--recorder", "nobody"], "no recorder or engine 'nobody' is in it"),
        (["--against", "recorded", "--config", "nothing"], "it is no JSON"),
        (["--against", "recorded", "--config", "[1]"], "it must be a JSON object"),
        (["--against", "recorded", "--config", '{"chunk_size": 7}'], "chunk_size"),
        (["--against", "recorded", "-o", "/nowhere/at/all.jsonl"], "/nowhere/at/all.jsonl: No such file or directory"),
    ],
)
def test_what_cannot_be_is_reported(trace: Path, arguments: list[str], said: str) -> None:
    result = replay(trace, *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_log_cannot_be_driven_again(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    result = replay(log, "--against", "OffloadConnector")
    assert result.exit_code == 2
    assert "a log does not show how requests begin" in result.output


def test_nothing_is_written_over_by_accident(trace: Path, tmp_path: Path) -> None:
    assert "is one of the files to read" in replay(trace, "--against", "recorded", "-o", str(trace), "--force").output
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    assert "--force overwrites it" in replay(trace, "--against", "recorded", "-o", str(there)).output
    assert there.read_text() == "mine"
