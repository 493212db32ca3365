"""A recording driven again gives what was recorded; and what is not recorded is said."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from recorded_runs import play_once, survivable
from recordings import DEMO, OURS, STALE, assert_the_same, recorded

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.connector.simulate.redrive.comparison import Outcome
from kvtrail.connector.simulate.redrive.redrive import redrive
from kvtrail.connector.simulate.redrive.workload import NotDrivable, workload_of
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event, Evict
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.history import History, load

GOLDEN = Path(__file__).parents[3] / "golden"
FAULTY = "Faulty:stale-lookup:OffloadConnector"


@pytest.mark.parametrize("scenario", [DEMO, STALE], ids=["demo", "stale"])
def test_the_demos_workloads_come_out_lookup_for_lookup(tmp_path: Path, scenario: Scenario) -> None:
    played = play_once(scenario, configuration("OffloadConnector", OURS))
    driven = redrive(recorded(played, tmp_path))
    assert driven.workload.notes == ()
    assert_the_same(driven.comparison)
    assert driven.comparison.preemptions > 5
    assert driven.comparison.hits > 1000
    assert driven.played.steps == pytest.approx(played.steps, abs=15), "idle steps at the end are not recorded"


NOT_DRIVEN = ("spec-decode", "multi", "states")
"""States are driven below; of the others docs/logs-and-traces.md says why."""
IN_EACH_RUN = dict.fromkeys((
    "preemption-storm", "abort", "reset", "same-id", "identity", "full-store", "handoff", "groups", "block-sizes",
    "no-prefix-caching", "failed-requests",
), 0) | {"mixed": 2}  # fmt: skip
"""Profiles that differ in what a recording has to hold, with a seed; only seed 2 of `mixed` has vLLM schedule by priority.
`make test-all` drives all of them, with more seeds."""


@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        pytest.param(name, seed, marks=() if IN_EACH_RUN.get(name) == seed else pytest.mark.long)
        for name in PROFILES
        if name not in NOT_DRIVEN
        for seed in range(3)
    ],
)
def test_random_workloads_come_out_lookup_for_lookup(tmp_path: Path, profile: str, seed: int) -> None:
    """Aborts, resets of both caches with requests running and without, priorities, prompts that come again."""
    played = play_once(scenario_of(profile, seed), configuration("OffloadConnector", OURS))
    assert_the_same(redrive(recorded(played, tmp_path)).comparison)


@pytest.mark.parametrize(
    "profile",
    ["abort", "async", "reset", *(pytest.param(n, marks=pytest.mark.long) for n in ("preemption-storm", "mixed"))],
)
def test_transfers_between_steps_end_where_they_were_recorded(tmp_path: Path, profile: str) -> None:
    """vLLM's own OffloadingConnector: its answers depend on which loads and stores have ended."""
    native = ConnectorUnderTest("OffloadingConnector", {"cpu_bytes_to_use": 50_000_000})
    scenario = survivable(scenario_of(profile, 0), native.name)
    scenario = replace(scenario, workers=replace(scenario.workers, latest_steps=9))
    driven = redrive(recorded(play_once(scenario, native.configuration()), tmp_path))
    assert_the_same(driven.comparison)
    assert driven.comparison.hits > 100


@pytest.mark.parametrize(("profile", "seed"), [("groups", 3), ("states", 8), ("states", 19), ("states", 24)])
def test_a_hybrid_model_comes_out_lookup_for_lookup(tmp_path: Path, profile: str, seed: int) -> None:
    """With the declared groups: a window, a state, one with block hashes of half a block, and both."""
    scenario = scenario_of(profile, seed)
    scenario = replace(scenario, workers=replace(scenario.workers, latest_steps=9))
    played = play_once(scenario, configuration("OffloadingConnector", {"cpu_bytes_to_use": 50_000_000}))
    history = recorded(played, tmp_path)
    assert {event.groups for event in history.events} == {event.groups for event in played.events} != {None}
    driven = redrive(history)
    again = driven.workload.scenario
    assert [group[:3] for group in again.groups] == [
        (group.kind, scenario.block_size, group.window) for group in scenario.groups
    ]
    assert again.settings.get("prefix_match_unit") == scenario.settings.get("prefix_match_unit")
    assert_the_same(driven.comparison)
    assert driven.comparison.hits > 100


def test_a_group_that_is_not_simulated_is_named(tmp_path: Path) -> None:
    whole = recorded(
        play(Scenario(arrivals=(Arrival("r", (("p", 40),)),)), configuration("OffloadConnector", {})), tmp_path
    )
    declared = {semconv.GROUPS.key: json.dumps([{"kind": "full_attention"}, {"kind": "RSWASpec"}])}
    other = tuple(
        (event, structs.replace(span, resource={**span.resource, **declared})) for event, span in whole.moments
    )
    with pytest.raises(NotDrivable, match="a KV cache group of kind RSWASpec, which is not simulated"):
        workload_of(History(moments=other))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_recorded_loads_fail_again(tmp_path: Path, seed: int) -> None:
    native = ConnectorUnderTest("OffloadingConnector", {"cpu_bytes_to_use": 50_000_000})
    played = play_once(survivable(scenario_of("load-failure", seed), native.name), native.configuration())
    driven = redrive(recorded(played, tmp_path))
    assert len(driven.workload.scenario.workers.fails) > 10
    assert_the_same(driven.comparison)


def test_the_finding_comes_again_with_the_fault_and_not_without(tmp_path: Path) -> None:
    played = play_once(STALE, configuration(FAULTY, {}))
    history = recorded(played, tmp_path)
    faulty = redrive(history, connector=FAULTY)
    assert faulty.played.error == played.error
    assert faulty.comparison.same_findings == faulty.comparison.findings != ()
    assert_the_same(faulty.comparison)
    sound = redrive(history)
    assert (sound.connector, sound.played.error, sound.comparison.same_findings) == ("OffloadConnector", None, ())
    first = sound.comparison.first
    assert first is sound.comparison.parting
    assert first is not None
    assert (first.recorded or {})["matched"] == (first.driven or {})["matched"]
    assert ((first.recorded or {})["returned"], (first.driven or {})["returned"]) == (256, 0)
    assert (first.recorded_breaks, first.driven_breaks) == (("stale-lookup",), ())


def test_the_faulty_connector_differs_and_dies(tmp_path: Path) -> None:
    """The other way round; after the death nothing is compared."""
    driven = redrive(recorded(play_once(STALE, configuration("OffloadConnector", {})), tmp_path), connector=FAULTY)
    worse = driven.comparison
    assert worse.first is not None
    assert (worse.first.recorded_breaks, worse.first.driven_breaks) == ((), ("stale-lookup",))
    assert driven.played.error is not None
    assert worse.answers[-1].reason == "there was no such call this time; the engine had died"


def test_what_a_guard_replaced_is_compared_by_the_connectors_own_answer(tmp_path: Path) -> None:
    """The scheduler acts on the guard's answers, then as now."""
    played = play_once(STALE, configuration(FAULTY, {"kvtrail": {"guard": "heal"}}))
    assert played.error is None
    history = recorded(played, tmp_path)
    again, fixed = (redrive(history, connector=name).comparison for name in (FAULTY, "OffloadConnector"))
    assert_the_same(again)
    assert any(each.driven_breaks for each in again.answers)
    assert fixed.outcomes[Outcome.DIFFERENT] > 0
    assert fixed.outcomes[Outcome.NOT_COMPARABLE] == 0
    assert fixed.driven_findings == ()


def test_the_room_of_a_store_is_the_recorded_one_whatever_a_block_of_the_model_takes(tmp_path: Path) -> None:
    """The recorded budget is of another model, with blocks a hundred times as large."""
    small = {"chunk_size": 64, "cpu_bytes_to_use": 2_000_000}
    history = recorded(play_once(scenario_of("full-store", 1), configuration("OffloadConnector", small)), tmp_path)
    assert any(isinstance(event, Evict) for event in history.events)
    settings = {semconv.CONNECTOR_SETTINGS.key: json.dumps({**small, "cpu_bytes_to_use": 200_000_000})}

    def larger(event: Event) -> Event:
        return structs.replace(event, bytes=100 * (event.bytes or 0)) if isinstance(event, Evict) else event

    other = tuple(
        (larger(event), structs.replace(span, resource={**span.resource, **settings}))
        for event, span in history.moments
    )
    assert_the_same(redrive(replace(history, moments=other)).comparison)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 6))])
def test_what_is_missing_makes_no_difference_of_the_connectors(tmp_path: Path, seed: int) -> None:
    """Some spans are lost: what the same connector answers otherwise is not held against it."""
    rng = random.Random(seed)
    whole = recorded(play_once(STALE, configuration(FAULTY, {})), tmp_path)
    history = History(moments=tuple(each for each in whole.moments if rng.random() >= (0.04, 0.1, 0.3)[seed % 3]))
    compared = redrive(history, connector=FAULTY).comparison
    assert compared.first is None, compared.first
    assert any("are missing" in doubt for doubt in compared.doubts)


def test_any_order_of_lines_gives_the_same_workload(tmp_path: Path) -> None:
    played = play_once(replace(STALE, arrivals=STALE.arrivals[:8]), configuration("OffloadConnector", OURS))
    expected = workload_of(recorded(played, tmp_path))
    for order in range(10):
        again = workload_of(recorded(played, tmp_path, order=order))
        assert again.scenario == expected.scenario
    assert_the_same(redrive(recorded(played, tmp_path, order=7)).comparison)


def test_an_id_that_is_used_again_is_another_request(tmp_path: Path) -> None:
    same = tuple(Arrival("same", (("p", 300),), 4, at_step=40 * n) for n in range(3))
    played = play(
        Scenario(arrivals=same, resets=(CachesReset(39), CachesReset(79))), configuration("OffloadConnector", OURS)
    )
    driven = redrive(recorded(played, tmp_path))
    assert [a.id for a in driven.workload.scenario.arrivals] == ["same", "same~2", "same~3"]
    assert_the_same(driven.comparison)


def test_what_was_not_recorded_is_said(tmp_path: Path) -> None:
    """A recorder at level basic records no hashes."""
    played = play_once(DEMO, configuration("OffloadConnector", {**OURS, "kvtrail": {"level": "basic"}}))
    history = recorded(played, tmp_path)
    (note,) = workload_of(history).notes
    assert note.startswith(f"The block hashes of {len(DEMO.arrivals)} requests are not recorded")
    with pytest.raises(NotDrivable, match="does not say in which scheduling step"):
        workload_of(History(moments=tuple(_without_steps(history))))


def _without_steps(history: History) -> list[tuple[Any, Span]]:
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
    "profile",
    ["spec-decode", "reset", *(pytest.param(n, marks=pytest.mark.long) for n in ("preemption-storm", "mixed"))],
)
def test_without_hashes_no_answer_is_called_different(tmp_path: Path, profile: str) -> None:
    played = play_once(
        scenario_of(profile, 1), configuration("OffloadConnector", {**OURS, "kvtrail": {"level": "basic"}})
    )
    compared = redrive(recorded(played, tmp_path)).comparison
    assert compared.first is None, compared.first
    assert compared.has_compared


@pytest.mark.parametrize("name", ["gap", "truncated", "stale-lookup"])
def test_of_a_part_of_a_recording_no_answer_is_called_different(name: str) -> None:
    compared = redrive(load([GOLDEN / f"{name}.jsonl"]), connector=FAULTY if "stale" in name else None).comparison
    assert compared.first is None, compared.first


@pytest.mark.parametrize(
    "name", ["preempted", "loaded-again", "loaded-asynchronously", "aborted", "stale-lookup-whole"]
)
def test_the_golden_traces_come_out_lookup_for_lookup(name: str) -> None:
    driven = redrive(load([GOLDEN / f"{name}.jsonl"]), connector=FAULTY if "stale" in name else None)
    assert_the_same(driven.comparison)
    assert driven.comparison.same_findings == driven.comparison.findings
