"""`kvtrail audit --store`: what is stored is judged again, as it was when it came, and by rules that were not there then."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from stores import FleetTracer, clickhouse
from traffic import Engine, served

from kvtrail.__main__ import main
from kvtrail.tracer.history.audit import audit_stored
from kvtrail.tracer.rules import rule_set

S = 10**9


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["audit", *arguments])


@pytest.fixture
def tracer(tmp_path: Path) -> FleetTracer:
    """One that has heard an engine for the last two minutes."""
    tracer = FleetTracer(tmp_path, clickhouse())
    now_ns = time.time_ns()
    events = served(Engine("e"), from_ns=now_ns - 120 * S, to_ns=now_ns, stale_every=9)
    for at in range(0, len(events), 100):
        tracer.hear(events[at : at + 100])
    tracer.send()
    return tracer


def test_a_file_and_clickhouse_are_judged_as_they_were(tracer: FleetTracer) -> None:
    found = {finding["id"] for finding in tracer.local.findings(limit=1000)}
    assert found
    result = run("--json", "--store", str(tracer.path))
    assert result.exit_code == 1, result.output
    said = json.loads(result.output)
    assert {finding["id"] for finding in said["findings"]} == found
    until_ns = time.time_ns()
    again = audit_stored(lambda: tracer.fleet.spans(since_ns=0, until_ns=until_ns), "the fleet")
    assert {finding.id for finding in again.findings} == found
    assert (again.events, again.missing) == (said["events"], 0)


def test_what_is_stored_becomes_a_trace_file_and_is_summed_up(tracer: FleetTracer, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    assert run("--export", str(trace), "--store", str(tracer.path)).exit_code == 0
    stored, written = (json.loads(run("--json", *of).output) for of in (("--store", str(tracer.path)), (str(trace),)))
    assert [finding["id"] for finding in written["findings"]] == [finding["id"] for finding in stored["findings"]]
    said = json.loads(run("--savings", "--json", "--store", str(tracer.path)).stdout)["savings"]
    assert [each["worth"]["admissions"] > 0 for each in said] == [True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--savings", "--export", "trace"], "--why, --savings and --export exclude each other"),
        (["--force"], "--force goes with --export"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], said: str) -> None:
    result = run(*arguments, "t.jsonl")
    assert (result.exit_code, said in result.output) == (2, True)


def test_a_rule_that_came_later_finds_what_it_would_have_found(
    tracer: FleetTracer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = "stale-lookup"
    elsewhere = tmp_path / "before"
    every = rule_set.all_rules()
    with monkeypatch.context() as patch:
        patch.setattr("kvtrail.tracer.detect.detector.all_rules", lambda: [r for r in every if r.id != later])
        before = FleetTracer(elsewhere, clickhouse())
        now_ns = time.time_ns()
        before.hear(served(Engine("e"), from_ns=now_ns - 60 * S, to_ns=now_ns, stale_every=9))
        before.pipeline.tidy()
    assert not [finding for finding in before.local.findings() if finding["rule"] == later]
    result = run("--store", str(before.path), "--rule", later)
    assert (result.exit_code, later in result.output) == (1, True)


def test_how_far_it_goes_back(tracer: FleetTracer) -> None:
    def events(since: str) -> Any:
        return json.loads(run("--json", "--store", str(tracer.path), "--since", since).output)["events"]

    assert 0 < events("45s") < events("5m") == events("2d")


@pytest.mark.parametrize("since", ["24", "h", "1.5h", "-1h", "9999999d"])
def test_what_is_no_duration_is_refused(tracer: FleetTracer, since: str) -> None:
    result = run("--store", str(tracer.path), f"--since={since}")
    assert result.exit_code == 2
    assert "is not a number with s, m, h or d" in result.output


def test_a_store_that_is_not_there_or_is_none(tmp_path: Path) -> None:
    result = run("--store", str(tmp_path / "no.db"))
    assert (result.exit_code, "there is no store" in result.output) == (2, True)
    (tmp_path / "notes.txt").write_text("these are notes " * 500)
    result = run("--store", str(tmp_path / "notes.txt"))
    assert (result.exit_code, "not a database" in result.output) == (2, True)


def test_files_and_a_store_are_not_judged_together(tracer: FleetTracer, tmp_path: Path) -> None:
    result = run("--store", str(tracer.path), str(tmp_path / "trace.jsonl"))
    assert result.exit_code == 2
    assert "name either files to judge or a store with --store, not both" in " ".join(result.output.split())
