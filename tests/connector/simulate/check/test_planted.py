"""`kvtrail check` finds bugs of the kinds that authors of connectors write, and accuses the one without them of nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from planted.bugs import BUGS

from kvtrail.connector.simulate.check import report
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest, in_turn, varied
from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.connector.simulate.check.session import check
from kvtrail.connector.simulate.check.trial import run
from kvtrail.connector.simulate.scenario import Abort, When
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.history.history import load

MISSED = {"MarkMovedByFailedStore"}
"""It only wastes work: nothing that a request reads or a lookup claims is wrong, and it is over with the request."""
OF_WORKERS = {"BlocksKeptForEver", "ReportedTwice"}
"""What the connector's workers report, or never do: fakes report in their place."""
OF_PLANS = {"PlanSkipsFirstChunk"}
"""Only bytes show it."""

SHOWN_BY = {
    "StateOfAnOldRequest": ("same-id", 0),
    "KeyWithoutSalt": ("identity", 0),
    "AsyncConstant": ("async", 0),
    "ReportedTwice": ("async", 0),
    "BlocksKeptForEver": ("async", 0),
    "FullPromptHit": ("chunked-prefill", 0),
    "StaleLookup": ("preemption-storm", 0),
    "PinForEachRetry": ("retry", 0),
    "HitsSurviveReset": ("reset", 1),
    "StoresOfFailedLoadKept": ("load-failure", 3),
    "PlanSkipsFirstChunk": ("async", 0),
}
"""Profile and seed of a workload that shows a bug."""
DEAR = {"EvictedBeforeLoad"}
"""Only a session of many workloads shows it."""
STEPS = 25_000
"""A turn of the profiles more than `kvtrail check` takes by default."""


def test_a_lease_that_is_kept_on_abort_is_found() -> None:
    """Each request that waits with a hit is aborted."""
    name, scenario = "planted.bugs:LeaseKeptOnAbort", scenario_of("retry", 0)
    waits = [each for each in scenario.arrivals if each.id.startswith("waits")]
    scenario = replace(scenario, aborts=tuple(Abort(each.id, each.at_step, When.MATCHED) for each in waits))
    _, failures = run(ConnectorUnderTest(name, varied(name, in_turn("retry", 0)), own_workers=True), scenario)
    assert [each.id for each in failures] == ["rest: LeaseKeptOnAbort.pins is not as it was"]


def test_a_connector_that_loads_nothing_is_told_so_first_with_the_trace(tmp_path: Path) -> None:
    checked = check("planted.bugs:LoadsNothing", profiles=["chunked-prefill"], steps=None, runs=1, shrink_tries=0)
    assert checked.inconclusive[0].startswith("Its own workers do not load, or not on a CPU: a lookup of turn-")
    assert "of 680 tokens, and no byte of the KV cache changed" in checked.inconclusive[0]
    written = {path.name: path for path in report.write(checked, tmp_path)}
    trace = load([written["no-bytes.jsonl"]])
    assert any(isinstance(event, Lookup) and (event.answer or 0) > 500 for event in trace.events)


@pytest.mark.parametrize("bug", [name for name in BUGS if name not in MISSED | DEAR | {"LeaseKeptOnAbort"}])
def test_a_planted_bug_is_found_in_a_workload_that_shows_it(bug: str) -> None:
    profile, seed = SHOWN_BY[bug]
    checked = check(f"planted.bugs:{bug}", profiles=[profile], seed=seed, steps=None, runs=1, shrink_tries=0)
    assert checked.found


@pytest.mark.long
@pytest.mark.parametrize("bug", [name for name in BUGS if name not in MISSED])
def test_a_planted_bug_is_found_without_a_probe_and_a_hint(bug: str) -> None:
    checked = check(f"planted.bugs:{bug}", steps=STEPS, shrink_tries=0, stop_at_first=True)
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"


@pytest.mark.long
@pytest.mark.parametrize("bug", [name for name in BUGS if name not in MISSED | OF_WORKERS | OF_PLANS])
def test_fake_workers_alone_find_it_too(bug: str) -> None:
    checked = check(f"planted.bugs:{bug}", steps=STEPS, shrink_tries=0, stop_at_first=True, fake_workers=True)
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"


@pytest.mark.parametrize(
    ("fake_workers", "profiles"),
    [
        (False, ("preemption-storm", "retry", "conversation", "abort", "async", "load-failure")),
        (True, ("abort", "load-failure")),
        pytest.param(False, (*PROFILES,), marks=pytest.mark.long),
        pytest.param(True, (*PROFILES,), marks=pytest.mark.long),
    ],
)
def test_the_connector_without_a_bug_is_clean(fake_workers: bool, profiles: tuple[str, ...]) -> None:
    checked = check(
        "planted.probed:HostCache",
        profiles=profiles,
        runs=len(profiles),
        steps=None,
        shrink_tries=0,
        fake_workers=fake_workers,
    )
    assert [found.failure for found in checked.found] == []
    if fake_workers:
        return
    assert checked.fake_workers is None, "its own workers run"
    assert checked.loads_read > 20
