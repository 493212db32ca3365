"""A connector in a package that vLLM's registry does not know: a recording says its name, and whoever trusts it gives it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs
from pytest_alone import run_pytest
from recordings import recorded

from kvtrail.__main__ import main
from kvtrail.connector.registration import configuration, found_again, resolve
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.redrive.redrive import redrive
from kvtrail.connector.simulate.redrive.workload import NotDrivable, workload_of
from kvtrail.connector.simulate.regression import regression
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.events import semconv
from kvtrail.tracer.history.history import History

NAME = "connector_of_my_own.cache:MyConnector"
SOURCE = '''
from kvtrail.connector.offload import UntracedOffloadConnector


class MyConnector(UntracedOffloadConnector):
    """It promises a block more than it holds."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        new, late = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return new and new + 32, late
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the package, on Python's path."""
    folder = tmp_path / "site"
    (folder / "connector_of_my_own").mkdir(parents=True)
    (folder / "connector_of_my_own" / "cache.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    resolve.cache_clear()


@pytest.fixture
def history(package: Path, tmp_path: Path) -> History:
    played = play(scenario_of("preemption-storm", 0), configuration(NAME, {"chunk_size": 256}))
    assert "over-report" in {finding.rule for finding in played.findings}
    return recorded(played, tmp_path)


def test_it_is_driven_again(history: History) -> None:
    assert {span.resource[semconv.CONNECTOR_CLASS.key] for _, span in history.moments} == {NAME}
    driven = redrive(history, connector=NAME)
    assert driven.connector == NAME
    assert "over-report" in driven.comparison.same_rules
    assert driven.comparison.first is None


@pytest.mark.usefixtures("history")
def test_its_fault_becomes_a_test_that_finds_it_from_any_folder(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a few tries to make it smaller, which has its own tests."""
    assert regression.__kwdefaults__ is not None
    monkeypatch.setitem(regression.__kwdefaults__, "shrink_tries", 5)
    output = tmp_path / "test_mine.py"
    trace = str(tmp_path / "trace-None.jsonl")
    result = CliRunner().invoke(main, ["minimize", trace, "--connector", NAME, "--pytest", str(output)])
    assert result.exit_code == 0, result.output
    assert f"CONNECTOR = '{NAME}'\nFOLDER = '{package}'" in output.read_text()
    failing = run_pytest(output, {})
    assert failing.returncode == 1, failing.stdout
    assert "rule: over-report" in failing.stdout
    mended = run_pytest(output, {"KVTRAIL_CONNECTOR": "OffloadConnector"})
    assert mended.returncode == 0, mended.stdout


def with_attribute(history: History, name: str, value: str) -> History:
    """The history as a stranger may have changed it: a resource attribute, or the connector's name."""
    moments = []
    for event, span in history.moments:
        if name == semconv.CONNECTOR.key:
            moments.append((structs.replace(event, connector=value) if event.connector else event, span))
        else:
            moments.append((event, structs.replace(span, resource={**span.resource, name: value})))
    return replace(history, moments=tuple(moments))


@pytest.mark.parametrize("attribute", [semconv.CONNECTOR_CLASS.key, semconv.CONNECTOR.key])
def test_a_recording_never_chooses_what_is_imported(history: History, package: Path, attribute: str) -> None:
    (package / "evil_payload.py").write_text("class MyConnector: pass")
    (package / "connector_of_my_own" / "cache.py").write_text("raise AssertionError('imported')")
    sys.modules.pop("connector_of_my_own.cache", None)
    resolve.cache_clear()
    for made in (history, with_attribute(history, attribute, "evil_payload:MyConnector")):
        with pytest.raises(NotDrivable, match=r"no file chooses what is imported\. .* --against \S+:MyConnector"):
            redrive(made)
    with pytest.raises(NotDrivable, match="no file chooses"):
        redrive(with_attribute(history, semconv.CONNECTOR.key, "Faulty:stale-lookup:evil_payload:MyConnector"))
    assert not {"evil_payload", "connector_of_my_own.cache"} & {*sys.modules}


@pytest.mark.parametrize("command", [["minimize", "--pytest", "test_it.py"], ["replay", "--against", "recorded"]])
def test_the_commands_say_how_to_name_a_recorded_module(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*command, "trace-None.jsonl"])
    assert result.exit_code == 2
    assert f"`kvtrail replay --against {NAME}` or `kvtrail minimize --connector {NAME}`" in result.output


def test_of_recorded_settings_only_numbers_and_truth_values_are_used(history: History) -> None:
    """A text may name a module: vLLM's offloading connector imports its `spec_module_path`."""
    settings = (
        '{"spec_module_path": "evil_payload", "connectors": [{"kv_connector": "x"}], "a": 1, "b": true, "c": 0.5}'
    )
    made = with_attribute(history, semconv.CONNECTOR_SETTINGS.key, settings)
    assert workload_of(made).settings == {"a": 1, "b": True, "c": 0.5}


@pytest.mark.parametrize("value", ["evil_payload.Scheduler", ["x"], {"x": 1}, None])
def test_a_scenario_of_a_file_names_no_module(value: object) -> None:
    data = scenario_of("preemption-storm", 0).as_dict()
    assert Scenario.from_dict({**data, "settings": {**data["settings"], "scheduling_policy": "priority"}})
    for name in ("scheduler_cls", "scheduling_policy"):
        with pytest.raises(ValueError, match=f"setting {name} is neither a number"):
            Scenario.from_dict({**data, "settings": {name: value}})


@pytest.mark.parametrize(
    ("name", "recorded_as", "found"),
    [
        ("MyConnector", "my.cache:MyConnector", "my.cache:MyConnector"),
        ("MyConnector", None, "MyConnector"),
        ("OffloadConnector", "kvtrail.connector.offload:UntracedOffloadConnector", "OffloadConnector"),
        ("ExampleConnector", "vllm.moved.elsewhere:ExampleConnector", "ExampleConnector"),
        ("ExampleConnector", "my.fork:ExampleConnector", "my.fork:ExampleConnector"),
        ("MultiConnector", "my.cache:MyConnector", "MultiConnector"),
        ("evil_payload:MyConnector", "my.cache:MyConnector", "evil_payload:MyConnector"),
    ],
)
def test_a_name_that_vllm_knows_is_used_where_it_is_the_same_class(
    name: str, recorded_as: str | None, found: str
) -> None:
    assert found_again(name, recorded_as) == found
