"""`kvtrail conformance`: what it says about correct connectors, about faulty ones, and about those that it cannot judge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("vllm")

import faults  # noqa: F401 - makes them known

from kvtrail.__main__ import main
from kvtrail.connector.commands.conformance import LEVELS, conformance
from kvtrail.connector.simulate.check import features, trial
from kvtrail.connector.simulate.check.features import NEEDS, Feature
from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.connector.simulate.conformance import report, suite, text
from kvtrail.connector.simulate.conformance.requirements import Level
from kvtrail.connector.simulate.pairs import pair_scenario
from kvtrail.connector.simulate.run import Unbuildable
from kvtrail.connector.simulate.scenario import Arrival, Scenario
from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup

SCHEMA = Path(__file__).parents[4] / "docs" / "conformance" / "report.schema.json"
SILENT = "silent"
TOO_SHORT_TO_FIND = Scenario(arrivals=(Arrival("r-0", prompt=(("part-0", 1),)),))
FEW_TRIES = 5
REPORTS: dict[str, dict[str, Any]] = {}


def said(connector: str, *profiles: str, steps: int = 1, **more: Any) -> dict[str, Any]:
    """The report of a session over these profiles, each once if `steps` is 1."""
    key = json.dumps([connector, profiles, steps, more])
    if key not in REPORTS:
        asked = suite.asked_of(connector, steps=steps, **more)
        asked = replace(asked, driven=profiles or asked.driven)
        REPORTS[key] = report.as_dict(asked, suite.run(asked, shrink_tries=0))
    return REPORTS[key]


def failed(of: dict[str, Any]) -> set[str]:
    return {each["id"] for each in of["requirements"] if each["result"] == "failed"}


def passed(of: dict[str, Any]) -> set[str]:
    return {each["id"] for each in of["requirements"] if each["result"] == "passed"}


def test_a_correct_connector_passes_what_was_at_risk() -> None:
    of = said("OffloadConnector", "chunked-prefill")
    assert not of["failures"]
    assert {"core.lookup.only-stored", "core.load.contents", "core.load.in-time", "core.end.blocks"} <= passed(of)
    abort = next(each for each in of["requirements"] if each["id"] == "core.abort.running")
    assert (abort["result"], abort["reached"]) == ("not exercised", 0)
    assert abort["why"] == "it was never reached: no run in which a request was aborted that ran"
    assert of["features"]["claimed"] == [Feature.FAILURES, Feature.GROUPS, Feature.PROBE]
    assert Feature.PROBE in of["features"]["detected"]
    assert of["connector"] == {
        "name": "OffloadConnector",
        "module": "kvtrail.connector.offload",
        "class": "UntracedOffloadConnector",
        "package": "kvtrail",
        "version": of["suite"]["kvtrail"],
    }


def test_one_profile_of_many_is_inconclusive() -> None:
    of = said("OffloadConnector", "chunked-prefill")
    assert of["verdict"] == "inconclusive"
    assert of["inconclusive"]
    assert text.as_text(of).index("Not exercised") < text.as_text(of).index("INCONCLUSIVE")


@pytest.mark.parametrize(
    ("fault", "profile", "broken"),
    [
        ("stale-lookup", "preemption-storm", "core.lookup.after-preemption"),
        ("no-token-left", "chunked-prefill", "core.lookup.leaves-a-token"),
        ("store-gap", "chunked-prefill", "core.store.no-gap"),
        ("failed-call", "chunked-prefill", "core.engine.lives"),
        ("blocks-exchanged", "chunked-prefill", "core.load.contents"),
    ],
)
def test_a_fault_breaks_its_requirement(fault: str, profile: str, broken: str) -> None:
    of = said(f"Faulty:{fault}:OffloadConnector", profile, config={"chunk_size": 64, "load_async": False})
    assert of["verdict"] == "failed"
    assert broken in failed(of)
    assert len(failed(of)) <= 12, "most of core is none of this fault's business"
    for each in of["failures"]:
        assert set(each["requirements"]) <= failed(of)
        assert each["requirements"]
    assert f"breaks {broken}" in text.as_text(of)


def test_a_connector_that_finds_nothing_proves_nothing() -> None:
    of = said(f"{SILENT}:FindsNothing", "chunked-prefill", steps=1)
    assert of["verdict"] == "inconclusive"
    assert any("lookups hit" in reason for reason in of["inconclusive"])
    assert not {each for each in passed(of) if each.startswith(("core.lookup", "core.allocation", "core.load"))}


def test_a_connector_that_claims_uncomputed_tokens_fails() -> None:
    of = said(f"{SILENT}:FindsEverything", "chunked-prefill", steps=1)
    assert of["verdict"] == "failed"
    assert "core.lookup.only-stored" in failed(of)
    assert not failed(of) & {"core.abort.running", "core.end.same-id", "core.reset.while-running"}


def test_a_connector_that_dies_at_once_does_not_take_for_ever() -> None:
    checked = suite.run(suite.asked_of(f"{SILENT}:DiesAtOnce", steps=1000), shrink_tries=0)
    assert checked.trials.total() == 10
    assert [each.failure.what for each in checked.found] == ["failed-call"]


def test_a_failure_of_a_feature_is_reported_at_core_too() -> None:
    """No requirement of core says that “ask me later” must end, and the failure is reported all the same."""
    of = said(f"{SILENT}:SaysLater", "chunked-prefill")
    assert of["verdict"] == "failed"
    assert failed(of) == {"extended.async-lookups.answered"}
    assert not {each for each in passed(of) if each.startswith(("core.lookup", "core.load", "core.end"))}


def test_reports_are_as_the_published_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    published = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(published)
    validator = jsonschema.Draft202012Validator(published)
    for of in (said("OffloadConnector", "chunked-prefill"), said(f"{SILENT}:FindsEverything", "chunked-prefill")):
        data = json.loads(json.dumps(of))
        validator.validate(data)
        assert not validator.is_valid({**data, "more": 1})
        assert not validator.is_valid({**data, "verdict": "fine"})
        assert not validator.is_valid({name: value for name, value in data.items() if name != "verdict"})


def test_core_drives_what_core_needs() -> None:
    asked = suite.asked_of("OffloadConnector")
    assert set(asked.driven) == PROFILES.keys() - NEEDS.keys()
    assert asked.not_driven.keys() == NEEDS.keys()


def test_extended_drives_what_is_claimed() -> None:
    asked = suite.asked_of("ExampleConnector", level="all")
    assert "ranks" in asked.driven, "any connector may run with several ranks"
    assert not {"groups", "load-failure", "handoff", "handoffs"} & set(asked.driven)
    assert asked.not_driven["groups"] == "the connector does not claim it (several KV cache groups)"
    assert {"groups", "states", "load-failure"} <= set(suite.asked_of("OffloadConnector", level="all").driven)
    assert "handoffs" in suite.asked_of("NixlConnector", level="all").driven


def test_a_connector_that_does_not_exist() -> None:
    with pytest.raises(Unbuildable, match="knows no connector 'Nothing'"):
        suite.asked_of("Nothing")


def test_the_command_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "profiles", lambda *args: (("chunked-prefill",), {}))
    assert suite.run.__kwdefaults__ is not None
    monkeypatch.setitem(suite.run.__kwdefaults__, "shrink_tries", FEW_TRIES)
    arguments = [f"{SILENT}:FindsNothing", "--steps", "1", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(conformance, arguments)
    assert result.exit_code == 3, result.output
    of = json.loads(result.stdout)
    assert of == json.loads((tmp_path / "report.json").read_text())
    assert {"report.json", "index.html"} <= {each.name for each in tmp_path.iterdir()}
    arguments = [f"{SILENT}:FindsEverything", "--steps", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(conformance, arguments)
    assert result.exit_code == 1, result.output
    of = json.loads((tmp_path / "report.json").read_text())
    for each in of["failures"]:
        assert (tmp_path / each["trace"]).stat().st_size
        assert "def test_" in (tmp_path / each["test"]).read_text()


def test_a_failure_that_an_earlier_report_shows_is_not_shrunk_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = suite.asked_of(f"{SILENT}:FindsEverything", steps=1)
    before = suite.run(asked, shrink_tries=FEW_TRIES)
    earlier = report.as_dict(asked, before)

    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("it was shrunk again")

    monkeypatch.setattr(trial, "shrink", never)
    after = suite.run(asked, known=report.known_from([json.loads(json.dumps(earlier))]))
    assert before.found
    assert [each.small.scenario for each in after.found] == [each.small.scenario for each in before.found]
    assert [each.failure.id for each in after.found] == [each.failure.id for each in before.found]
    assert not any(each.small.is_flaky for each in after.found)
    with pytest.raises(AssertionError, match="shrunk again"):  # what does not show the failure changes nothing
        suite.run(asked, known={each.failure.id: [TOO_SHORT_TO_FIND] for each in before.found})


def test_what_other_connectors_have_shown_is_tried_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier report may be another connector's, which hands over or has several KV cache groups."""
    asked = suite.asked_of(f"{SILENT}:FindsEverything", steps=1)
    ids = [each.failure.id for each in suite.run(asked, shrink_tries=0).found]
    handed_over = pair_scenario.drawn(1)
    groups = replace(TOO_SHORT_TO_FIND, groups=(CacheGroup(FULL), CacheGroup(SLIDING, window=64)))
    played: list[Scenario] = []
    run = trial.run

    def noted(tested: Any, scenario: Scenario, **options: Any) -> Any:
        played.append(scenario)
        return run(tested, scenario, **options)

    monkeypatch.setattr(trial, "run", noted)
    monkeypatch.setattr(trial, "shrink", lambda scenario, *args, **options: scenario)
    found = suite.run(asked, known={each: [handed_over, groups] for each in ids}).found
    assert [each.failure.id for each in found] == ids
    assert groups in played
    assert handed_over not in played


@pytest.mark.parametrize("text", ["{}", "[1]", '{"failures": [{"id": "a"}]}', "no JSON"])
def test_what_is_no_report_is_not_known(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)
    arguments = [f"{SILENT}:FindsNothing", "--known", str(tmp_path / "report.json"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(conformance, arguments)
    assert result.exit_code == 2
    assert "Invalid value for --known" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_cannot_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(conformance, ["Nothing", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "Nothing cannot be run: kvtrail: vLLM knows no connector" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_command_has_help() -> None:
    shown = CliRunner().invoke(main, ["conformance", "--help"]).output
    assert "Example: kvtrail conformance OffloadingConnector" in shown
    assert (*Level, "all") == LEVELS
