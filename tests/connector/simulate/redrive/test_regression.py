"""A recorded fault becomes a self-contained test."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pytest_alone import run_pytest

from kvtrail.__main__ import main
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.regression import regression
from kvtrail.connector.simulate.run import Played, play
from kvtrail.tracer.ingest import otlp_json

TRIES = 20
STALE = "Faulty:stale-lookup:OffloadConnector"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of #2158's bug among sixteen requests."""
    played: Played = play(scenario_of("preemption-storm", 0), configuration(STALE, {"chunk_size": 256}))
    assert "stale-lookup" in {finding.rule for finding in played.findings}
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text(otlp_json.spans_to_json_line(played.spans))
    return path


@pytest.mark.costly("pytest imports vLLM in a process of its own")
def test_it_fails_with_the_fault_and_passes_without(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert regression.__kwdefaults__ is not None
    monkeypatch.setitem(regression.__kwdefaults__, "shrink_tries", TRIES)
    output = tmp_path / "test_stale.py"
    result = CliRunner().invoke(main, ["minimize", str(trace), "--connector", STALE, "--pytest", str(output)])
    assert result.exit_code == 0, result.output
    assert "rule: stale-lookup" in result.output
    assert "of 11 requests" in result.output, "the others had not come when the engine died"
    source = output.read_text()
    assert 'CONFIGURATION = json.loads(\'{"chunk_size": 256, "cpu_bytes_to_use": ' in source
    assert "'id': 'r-0'" in source, "original request ids are not needed"
    assert len(source) < 4000
    failing = run_pytest(output, {})
    assert failing.returncode == 1, failing.stdout
    assert "rule: stale-lookup" in failing.stdout
    mended = run_pytest(output, {"KVTRAIL_CONNECTOR": "OffloadConnector"})
    assert mended.returncode == 0, mended.stdout
    # With another fault, which ends the run before the fixed one could show, nothing is failed, and nothing is proven.
    other = run_pytest(output, {"KVTRAIL_CONNECTOR": "Faulty:over-report:OffloadConnector"})
    assert (other.returncode, "1 skipped" in other.stdout) == (0, True), other.stdout


def test_with_a_sound_connector_there_is_nothing_to_write(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "test_sound.py"
    result = CliRunner().invoke(main, ["minimize", str(trace), "--pytest", str(output)])
    assert result.exit_code == 1
    assert "stale-lookup) does not appear when the recording is driven again with OffloadConnector" in result.output
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "stale-handoff"], "rule stale-handoff does not appear"),
        (["--connector", "NoSuchConnector"], "vLLM knows no connector 'NoSuchConnector'"),
        (["--recorder", "nobody"], "no recorder or engine 'nobody' is in it"),
        (["--config", "[1]"], "must be a JSON object"),
    ],
)
def test_what_cannot_be_is_said(trace: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    named = [] if "--connector" in arguments else ["--connector", STALE]
    output = str(tmp_path / "test_x.py")
    result = CliRunner().invoke(main, ["minimize", str(trace), *named, *arguments, "--pytest", output])
    assert result.exit_code in (1, 2)
    assert said in result.output
