"""A recording driven again gives what was recorded; and where something had to be guessed, that is said."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recordings import DEMO, OURS, STALE, assert_the_same, recorded

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.connector.simulate.check.session import allowed
from kvtrail.connector.simulate.check.subject import Subject
from kvtrail.connector.simulate.redrive.redrive import redrive
from kvtrail.connector.simulate.redrive.workload import NotDrivable, workload_of
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.history import History, load

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.mark.parametrize("scenario", [DEMO, STALE], ids=["demo", "stale"])
def test_the_demos_workloads_come_out_lookup_for_lookup(tmp_path: Path, scenario: Scenario) -> None:
    played = play(scenario, configuration("OffloadConnector", OURS))
    driven = redrive(recorded(played, tmp_path))
    assert driven.workload.notes == ()
    assert_the_same(driven.closeness)
    assert driven.closeness.preemptions > 5
    assert driven.closeness.hits > 1000
    assert driven.played.steps == pytest.approx(played.steps, abs=15), "idle steps at the end are not recorded"


NOT_DRIVEN = ("spec-decode", "load-failure", "multi", "groups")
"""The OffloadConnector refuses several KV cache groups; of the others docs/replay.md says why."""


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in NOT_DRIVEN])
@pytest.mark.parametrize("seed", range(3))
def test_random_workloads_come_out_lookup_for_lookup(tmp_path: Path, profile: str, seed: int) -> None:
    """Aborts, resets of both caches with requests running and without, priorities, prompts that come again."""
    scenario = scenario_of(profile, seed)
    played = play(scenario, configuration("OffloadConnector", OURS))
    assert_the_same(redrive(recorded(played, tmp_path)).closeness)


@pytest.mark.parametrize("profile", ["preemption-storm", "abort", "async", "reset", "mixed"])
def test_transfers_between_steps_end_where_they_were_recorded(tmp_path: Path, profile: str) -> None:
    """vLLM's own OffloadingConnector: its answers depend on which loads and stores have ended."""
    native = Subject("OffloadingConnector", {"cpu_bytes_to_use": 50_000_000}, may_reset_running=False)
    scenario = allowed(scenario_of(profile, 0), native)
    scenario = replace(scenario, workers=replace(scenario.workers, latest_steps=9))
    driven = redrive(recorded(play(scenario, native.configuration()), tmp_path))
    assert_the_same(driven.closeness)
    assert driven.closeness.hits > 100


def test_the_finding_comes_again_with_the_fault_and_not_without(tmp_path: Path) -> None:
    stale = "Faulty:stale-lookup:OffloadConnector"
    played = play(STALE, configuration(stale, {}))
    history = recorded(played, tmp_path)
    faulty = redrive(history, connector=stale)
    assert faulty.played.error == played.error
    assert faulty.closeness.same_findings == faulty.closeness.findings != ()
    assert_the_same(faulty.closeness)
    sound = redrive(history)
    assert (sound.connector, sound.played.error, sound.closeness.same_findings) == ("OffloadConnector", None, ())
    divergence = sound.closeness.divergence
    assert divergence is not None
    assert divergence.recorded is not None
    assert divergence.driven is not None
    assert divergence.recorded[:4] == divergence.driven[:4], "asked the same"
    assert divergence.recorded[4] != divergence.driven[4] == 0


def test_any_order_of_lines_gives_the_same_workload(tmp_path: Path) -> None:
    played = play(replace(STALE, arrivals=STALE.arrivals[:8]), configuration("OffloadConnector", OURS))
    expected = workload_of(recorded(played, tmp_path))
    for order in range(100):
        again = workload_of(recorded(played, tmp_path, order=order))
        assert again.scenario == expected.scenario
    assert_the_same(redrive(recorded(played, tmp_path, order=7)).closeness)


def test_an_id_that_is_used_again_is_another_request(tmp_path: Path) -> None:
    same = tuple(Arrival("same", (("p", 300),), 4, at_step=40 * n) for n in range(3))
    played = play(
        Scenario(arrivals=same, resets=(CachesReset(39), CachesReset(79))), configuration("OffloadConnector", OURS)
    )
    driven = redrive(recorded(played, tmp_path))
    assert [a.id for a in driven.workload.scenario.arrivals] == ["same", "same~2", "same~3"]
    assert_the_same(driven.closeness)


def test_what_was_not_recorded_is_guessed_and_said(tmp_path: Path) -> None:
    """As an older recorder at level basic would have it: no hashes, no steps."""
    played = play(DEMO, configuration("OffloadConnector", {**OURS, "kvtrail": {"level": "basic"}}))
    history = recorded(played, tmp_path)
    driven = redrive(history)
    assert [note.split(" (")[0] for note in driven.workload.notes] == ["The recording holds no block hashes"]
    assert driven.closeness.divergence is not None, "lengths are not enough for the rest"
    assert driven.closeness.driven_hits == pytest.approx(driven.closeness.hits, rel=0.3)
    older = History(moments=tuple((event, span) for event, span in _older(history)))
    workload = workload_of(older)
    assert workload.notes[0].startswith("The recording does not say in which scheduling steps")
    steps = [arrival.at_step for arrival in workload.scenario.arrivals]
    assert steps == sorted(steps)
    assert steps[-1] > 100


def _older(history: History) -> list[tuple[Any, Span]]:
    moments = []
    for event, span in history.moments:
        older = copy.copy(event)
        if hasattr(older, "scheduler_step"):
            older.scheduler_step = None
        moments.append((older, span))
    return moments


def test_a_history_that_cannot_be_driven_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotDrivable, match="no request of a scheduler begins in it"):
        workload_of(History())
    one, other = (
        play(Scenario(arrivals=(Arrival("r", (("p", 40),)),)), configuration("OffloadConnector", {})) for _ in "ab"
    )
    both = History(moments=recorded(one, tmp_path).moments + recorded(other, tmp_path).moments)
    with pytest.raises(NotDrivable, match="of several engines; say which one: "):
        workload_of(both)
    chosen = workload_of(both, recorder=one.events[0].engine)
    assert [arrival.id for arrival in chosen.scenario.arrivals] == ["r"]
    with pytest.raises(NotDrivable, match="no recorder or engine 'nobody'"):
        workload_of(both, recorder="nobody")


@pytest.mark.parametrize(
    "name", ["preempted", "loaded-again", "loaded-asynchronously", "aborted", "stale-lookup-whole"]
)
def test_the_golden_traces_come_out_lookup_for_lookup(name: str) -> None:
    faulty = "Faulty:stale-lookup:OffloadConnector" if "stale" in name else None
    driven = redrive(load([GOLDEN / f"{name}.jsonl"]), connector=faulty)
    assert_the_same(driven.closeness)
    assert driven.closeness.same_findings == driven.closeness.findings
