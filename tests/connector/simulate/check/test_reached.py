"""What a run reaches is counted where it happens, and only there."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from once_a_session import once_a_session
from recorded_runs import survivable

from kvtrail.connector.simulate.check import report
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.check.coverage import POINTS, reached
from kvtrail.connector.simulate.check.profiles import PAIR_PROFILES, PROFILES, scenario_of
from kvtrail.connector.simulate.check.session import check
from kvtrail.connector.simulate.check.trial import run
from kvtrail.connector.simulate.scenario import Abort, Arrival, CachesReset, Scenario, When, Workers

OFFLOADING = ConnectorUnderTest("OffloadingConnector", {"cpu_bytes_to_use": 50_000_000})
"""It loads between steps, and fakes end its transfers by the scenario alone."""
OFFLOAD = ConnectorUnderTest("OffloadConnector", {"chunk_size": 64}, own_workers=True)
"""It loads within a step."""
ASYNC = ConnectorUnderTest("OffloadConnector", {"chunk_size": 64, "load_async": True}, own_workers=True)

BESIDE = ConnectorUnderTest("OffloadConnector", {"chunk_size": 64}, beside=True)
"""It is the second child of a MultiConnector."""
REPORTING = ConnectorUnderTest("planted.reporting:Reporting", {"chunk": 64, "slots": 10, "lag": 0}, own_workers=True)
"""It has no probe, and its KV cache events report what its small store evicts."""

TWICE = Scenario(
    arrivals=(Arrival("first", (("head", 320),), 1, 0), Arrival("again", (("head", 320), ("tail", 40)), 1, 30)),
    resets=(CachesReset(25),),
    workers=Workers(latest_steps=6, ends=(("again/0", 40),)),
)
"""A prompt is stored; vLLM forgets it; a longer one loads it."""


@once_a_session
def of(scenario: Scenario, tested: ConnectorUnderTest = OFFLOADING) -> Counter[str]:
    played, failures = run(tested, scenario)
    assert failures == []
    counted = reached(played)
    assert counted.keys() <= POINTS.keys()
    return counted


def test_a_prompt_that_is_loaded_reaches_a_hit_a_load_and_nothing_rarer() -> None:
    counted = of(TWICE)
    assert counted["lookup/hit"] >= 1
    assert counted["lookup/async"] == counted["lookup/hit"]
    assert counted["load/within-step"] == 0
    assert counted["load/open"] == counted["load/received"] == counted["step/after-load"] > 0
    assert counted["end/all"] == 1
    never = (
        "preempt/any",
        "end/aborted-running",
        "load/failed",
        "load/open-at-abort",
        "end/id-again",
        "groups/hit",
        "ranks/hit",
    )
    assert {point: counted[point] for point in never} == dict.fromkeys(never, 0)


def test_the_same_within_a_step() -> None:
    counted = of(TWICE, OFFLOAD)
    assert counted["load/within-step"] == counted["alloc/external"] > 0
    assert counted["load/open"] == counted["load/received"] == counted["lookup/async"] == 0
    assert counted["load/planned"] > 0
    assert counted["bytes/loads"] > 0


def test_who_leaves_while_a_load_is_open_is_counted_there_alone() -> None:
    plain, aborted = of(TWICE), of(replace(TWICE, aborts=(Abort("again", 30, When.LOADING),)))
    assert (plain["load/open-at-abort"], aborted["load/open-at-abort"]) == (0, 1)
    assert aborted["end/aborted-running"] == 0


def test_a_reset_while_a_load_is_open_is_another_one_than_at_rest() -> None:
    reset = CachesReset(30, prefix_cache=False, connector=True, when=When.LOADING)
    assert of(TWICE)["load/open-at-reset"] == 0
    counted = of(replace(TWICE, resets=(*TWICE.resets, reset)))
    assert counted["load/open-at-reset"] == 1
    assert counted["reset/connector"] == 2, "one more at rest, by the observer"


def test_an_id_that_comes_again_is_no_lookup_that_comes_again() -> None:
    counted = of(replace(TWICE, arrivals=tuple(replace(each, id="same") for each in TWICE.arrivals)))
    assert counted["end/id-again"] == 1
    assert of(TWICE)["end/id-again"] == 0


def test_a_child_that_is_asked_but_not_chosen_reaches_no_load() -> None:
    counted = of(TWICE, BESIDE)
    assert counted["lookup/hit"] > 0
    assert counted["alloc/answer-discarded"] > 0
    assert counted["alloc/external"] == counted["load/planned"] == 0


def test_a_session_counts_and_its_reports_say_it() -> None:
    checked = check("OffloadConnector", profiles=["identity"], config={"chunk_size": 64}, runs=1, steps=None)
    assert checked.reached["lookup/other-identity"] > 0
    assert checked.reached == sum((each.reached for each in checked.runs), Counter())
    assert report.as_dict(checked)["reached"]["preempt/any"] == checked.reached["preempt/any"]


@pytest.mark.long
def test_each_point_is_reached_by_some_profile_or_named_with_the_reason() -> None:
    counted: Counter[str] = Counter()
    rng = random.Random(0)

    def add(tested: ConnectorUnderTest, scenario: Any) -> None:
        counted.update(reached(run(tested, scenario)[0]))

    for profile in PROFILES:
        for tested in (OFFLOAD, ASYNC, OFFLOADING):
            add(tested, survivable(scenario_of(profile, rng.randrange(20)), tested.name))
    add(BESIDE, TWICE)
    for name in ("NixlConnector", "NixlPushConnector"):
        for profile in PAIR_PROFILES:
            add(ConnectorUnderTest(name), scenario_of(profile, 0))
    for seed in range(10):
        for profile in ("reset", "abort", "block-sizes", "load-failure", "preemption-storm", "kv-events"):
            if POINTS.keys() - counted.keys():
                add(OFFLOADING, survivable(scenario_of(profile, seed), OFFLOADING.name))
                add(OFFLOAD, scenario_of(profile, seed))
                add(REPORTING, scenario_of(profile, seed))
    assert POINTS.keys() - counted.keys() == set()
