"""A connector in a package that vLLM's registry does not know: a recording finds it again on its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pytest_alone import run_pytest
from recordings import recorded

from kvtrail.__main__ import main
from kvtrail.connector.registration import configuration, found_again, resolve
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.redrive.redrive import redrive
from kvtrail.connector.simulate.regression import regression
from kvtrail.connector.simulate.run import play
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
    driven = redrive(history)
    assert driven.connector == NAME
    assert "over-report" in driven.comparison.same_rules
    assert driven.comparison.first is None
    assert driven.comparison.reproduced


@pytest.mark.usefixtures("history")
def test_its_fault_becomes_a_test(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a few tries to make it smaller, which has its own tests."""
    assert regression.__kwdefaults__ is not None
    monkeypatch.setitem(regression.__kwdefaults__, "shrink_tries", 5)
    output = tmp_path / "test_mine.py"
    result = CliRunner().invoke(main, ["test", str(tmp_path / "trace-None.jsonl"), "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert f"CONNECTOR = '{NAME}'" in output.read_text()
    failing = run_pytest(output, {"PYTHONPATH": str(package)})
    assert failing.returncode == 1, failing.stdout
    assert "rule: over-report" in failing.stdout
    mended = run_pytest(output, {"KVTRAIL_CONNECTOR": "OffloadConnector"})
    assert mended.returncode == 0, mended.stdout


@pytest.mark.parametrize(
    ("name", "recorded_as", "found"),
    [
        ("MyConnector", "my.cache:MyConnector", "my.cache:MyConnector"),
        ("MyConnector", None, "MyConnector"),
        ("OffloadConnector", "kvtrail.connector.offload:UntracedOffloadConnector", "OffloadConnector"),
        ("ExampleConnector", "vllm.moved.elsewhere:ExampleConnector", "ExampleConnector"),
        ("ExampleConnector", "my.fork:ExampleConnector", "my.fork:ExampleConnector"),
        ("MultiConnector", "my.cache:MyConnector", "MultiConnector"),
    ],
)
def test_a_name_that_vllm_knows_is_used_where_it_is_the_same_class(
    name: str, recorded_as: str | None, found: str
) -> None:
    assert found_again(name, recorded_as) == found
