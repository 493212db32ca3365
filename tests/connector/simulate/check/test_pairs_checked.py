"""`kvtrail check` drives pairs of engines with connectors that hand over: it finds planted bugs, and none in vLLM's own."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
pytest.importorskip("vllm.distributed.nixl_utils", reason="vLLM 0.32 and later")

from planted.hand_offs import BUGS

from kvtrail.connector.simulate.check import report
from kvtrail.connector.simulate.check.profiles import PAIR_PROFILES, scenario_of
from kvtrail.connector.simulate.check.session import Checked, check
from kvtrail.connector.simulate.regression import as_pytest
from kvtrail.connector.simulate.run import Unbuildable
from kvtrail.connector.simulate.scenario import Scenario


def checked(connector: str, runs: int, tries: int = 0, stop_at_first: bool = False) -> Checked:
    return check(
        connector, profiles=tuple(PAIR_PROFILES), steps=None, runs=runs, shrink_tries=tries, stop_at_first=stop_at_first
    )


def test_a_scenario_of_two_engines_survives_json() -> None:
    for seed in range(20):
        scenario = scenario_of("handoffs", seed)
        assert Scenario.from_dict(scenario.as_dict()) == scenario


@pytest.mark.parametrize("runs", [4, pytest.param(100, marks=pytest.mark.long)])
def test_nothing_is_found_in_vllms_own(runs: int) -> None:
    done = checked("NixlConnector", runs)
    assert [each.failure for each in done.found] == []
    assert done.hits > 10 * runs
    assert "Its own workers ran where two engines handed over to each other" in report.as_text(done)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    done = checked(f"planted.hand_offs:{bug}", 4, stop_at_first=True)
    assert BUGS[bug] in [each.failure.id for each in done.found]


def test_a_failure_is_shrunk_and_written_down_as_a_test() -> None:
    (found, *_) = checked("planted.hand_offs:ReadsWithoutAReport", 1, tries=60).found
    assert len(found.small.scenario.everybody) == 1
    assert not found.small.is_flaky
    source = as_pytest(found.small.scenario, connector=found.tested, failure=found.failure)
    assert "from kvtrail.connector.simulate.scenario import Scenario" in source
    compile(source, "test", "exec")


def test_a_connector_without_hand_offs_is_refused() -> None:
    with pytest.raises(Unbuildable, match="hand over to each other: handoffs"):
        checked("OffloadConnector", 1)
