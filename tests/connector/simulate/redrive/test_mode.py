"""`kvtrail replay --engine` and `--against`, as their user sees them."""

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
    assert result.exit_code == 0, result.output
    assert f"driven again with {FAULTY} instead of OffloadConnector" in result.output
    assert "the recorded finding appears again (stale-lookup for 0-bug-" in result.output
    assert re.search(r": \d+ same, 0 different, 0 not comparable\.", result.output)
    assert re.search(r"Reproduced: an error in 1 answer, stale-lookup in \d+ answers\.", result.output)
    assert "The engine died after" in result.output
    assert "Mismatch in tokens to load" in result.output
    assert result.output.endswith("answers the same, the recorded faults included, as far as can be compared.\n")
    assert [f.rule for f in audit([again]).findings] == [f.rule for f in audit([trace]).findings] == ["stale-lookup"]


def test_the_recorded_class_without_the_fault_shows_where_it_differs(trace: Path) -> None:
    result = replay(trace, "--engine")
    assert result.exit_code == 0, result.output
    assert "the recorded findings do not appear" in result.output
    first = result.output.partition("The first difference:\n")[2].splitlines()
    assert re.match(r"  #\d+ lookup of 0-bug-\d+ \(after preemption 1\), at \d\d:\d\d:\d\d\.\d{3}$", first[0])
    assert [line.split()[0] for line in first[1:4]] == ["asked", "recorded", "this"]
    assert first[2].endswith("256 matched, answered 256, from memory")
    assert first[3].endswith("256 matched, answered 0")
    assert first[4].strip() == "A fix: the recorded answer breaks stale-lookup, this one breaks no rule."


def test_one_document_for_machines(trace: Path) -> None:
    result = replay(trace, "--against", FAULTY, "--json")
    document = json.loads(result.stdout)
    assert document["lookups"]["recorded"] == document["lookups"]["same"] > 0
    assert document["first_difference"] is None
    assert [rule for rule, _ in document["same_findings"]] == ["stale-lookup"]
    assert document["error"].startswith("AssertionError: Mismatch")
    assert document["scenario"]["arrivals"]
    assert {each["call"] for each in document["answers"]} == {"lookup", "allocation"}


@pytest.mark.parametrize(
    ("connector", "expect", "code", "line"),
    [
        ("OffloadConnector", "fixed", 0, r"as expected\. \d+ recorded faults: \d+ fixed, 0 not; new: none; answers: "),
        ("OffloadConnector", "same", 1, r"not as expected\."),
        (FAULTY, "same", 0, r"as expected\. (\d+) recorded faults: 0 fixed, \1 not; new: none; answers: "),
        (FAULTY, "fixed", 1, r"not as expected\. (\d+) recorded faults: 0 fixed, \1 not; "),
    ],
)
def test_what_is_expected_of_a_fault(trace: Path, connector: str, expect: str, code: int, line: str) -> None:
    result = replay(trace, "--against", connector, "--expect", expect)
    assert result.exit_code == code
    assert re.match(f"--expect {expect}: {line}", result.output.splitlines()[-1])


@pytest.mark.parametrize(("expect", "met"), [("fixed", True), ("same", False)])
def test_machines_read_whether_it_was_as_expected(trace: Path, expect: str, met: bool) -> None:
    reported = json.loads(replay(trace, "--against", "OffloadConnector", "--expect", expect, "--json").stdout)
    assert (reported["expected"], reported["met"]) == (expect, met)


def test_a_recording_without_faults(tmp_path: Path) -> None:
    """The same answers are nothing fixed; the faulty connector's are new faults, and another chunk size is another policy."""
    well = tmp_path / "well.jsonl"
    well.write_text(otlp_json.spans_to_json_line(play_once(STALE, configuration("OffloadConnector", {})).spans))
    same, faulty = (replay(well, "--against", name, "--expect", "fixed") for name in ("OffloadConnector", FAULTY))
    assert (same.exit_code, faulty.exit_code) == (3, 1)
    worse = replay(well, "--against", FAULTY)
    assert worse.exit_code == 1
    assert "A new fault: the recorded answer breaks no rule, this one breaks stale-lookup." in worse.output
    assert worse.output.endswith(
        f"{FAULTY} shows faults that the recording does not show: stale-lookup, the death of the engine.\n"
    )
    other = replay(well, "--against", "OffloadConnector", "--config", '{"chunk_size": 64}')
    assert other.exit_code == 1
    assert "Another answer, by the rules no better and no worse." in other.output
    assert other.output.endswith("OffloadConnector answers differently.\n")


def test_where_nothing_can_be_compared_it_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.connector.simulate.redrive.comparison._pairs", lambda *_: [])
    for more in ((), ("--expect", "same"), ("--expect", "fixed")):
        result = replay(GOLDEN / "preempted.jsonl", "--against", "OffloadConnector", *more)
        assert (result.exit_code, "nconclusive" in result.output) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "--request", "r"], "--engine and --against drive the whole history"),
        (["--against", "OffloadConnector", "--step", "1"], "--engine and --against drive the whole history"),
        (["--engine", "--expect", "same"], "--expect goes with --against"),
        (["--config", "{}"], "--config, --recorder and --output go with --engine or --against"),
        (["--against", "NoSuchConnector"], "vLLM knows no connector 'NoSuchConnector'"),
        (["--against", "NoSuchConnector"], "A class of your own is module:Class"),
        (["--against", "no_such_package:It"], "No module named 'no_such_package'"),
        (["--engine", "--recorder", "nobody"], "no recorder or engine 'nobody' is in it"),
        (["--engine", "--config", "nothing"], "it is no JSON"),
        (["--engine", "--config", "[1]"], "it must be a JSON object"),
        (["--engine", "--config", '{"chunk_size": 7}'], "chunk_size"),
        (["--engine", "-o", "/nowhere/at/all.jsonl"], "/nowhere/at/all.jsonl: No such file or directory"),
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
    assert "is one of the files to read" in replay(trace, "--engine", "-o", str(trace), "--force").output
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    assert "--force overwrites it" in replay(trace, "--engine", "-o", str(there)).output
    assert there.read_text() == "mine"
