"""Busy is not broken: correct connectors in busy engines, at the speed of real ones, are accused of nothing.

A slice of `benchmarks/busy.py`, which judges ten million events.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from busy_runs import burst, busy, hybrid, run
from damages import sent
from recorded_runs import Run
from sidecars import live, read, stored

from kvtrail.tracer.events.cache_groups import groups_of
from kvtrail.tracer.events.events import Heartbeat, Received, Schedule
from kvtrail.tracer.events.semconv import Kind

SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 16))]
HYBRIDS = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 12))]
IN_FILES = 2
LATER = "busy_connectors:LaterOnce"


@pytest.mark.parametrize("connector", ["OffloadingConnector", LATER])
@pytest.mark.parametrize(("slots", "requests"), [(8, 64), (2, 24)])
def test_requests_that_wait_for_slots_are_not_stuck(connector: str, slots: int, requests: int) -> None:
    made = queued(connector, slots, requests)
    waits_s = longest_waits_s(made)
    assert waits_s["kv.received" if connector != LATER else "kv.lookup"] > 300, "the queue is deep"
    assert list(live(sent(made.events)).found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_no_busy_engine_is_accused(seed: int, tmp_path: Path) -> None:
    made = busy(seed)
    delivery = sent(made.events)
    assert list(live(delivery).found) == [], made.name
    if seed < IN_FILES:
        audited, replayed = read(delivery, tmp_path)
        assert list(audited.found) == list(replayed.found) == list(stored(delivery, tmp_path).found) == [], made.name


@pytest.mark.parametrize("seed", HYBRIDS)
def test_no_busy_engine_with_several_kv_cache_groups_is_accused(seed: int) -> None:
    made = hybrid(seed)
    assert {len(groups_of(event.groups)) for event in made.events} <= {2, 3}, made.name
    assert list(live(sent(made.events)).found) == [], made.name


@cache
def queued(connector: str, slots: int, requests: int) -> Run:
    """Requests that hit come at once, each runs for a minute, and few run at a time."""
    rng = random.Random(f"{connector}/{slots}")
    scenario = burst(rng, slots, requests, output=60, step_s=1.0, heads=requests)
    workers = replace(scenario.workers, latest_steps=3)
    scenario = replace(scenario, workers=workers, settings={**scenario.settings, "scheduling_policy": "fcfs"})
    return run(connector, connector, scenario, 0.8, rng)


def longest_waits_s(made: Run) -> dict[str, float]:
    """The longest time from the last event of a kind to the request's first step, by kind."""
    last: dict[tuple[str | None, str], int] = {}
    longest: dict[str, float] = {}
    for event in made.events:
        if isinstance(event, Schedule):
            for kind in (Kind.RECEIVED.value, Kind.LOOKUP.value):
                if (since_ns := last.pop((event.request, kind), None)) is not None:
                    longest[kind] = max(longest.get(kind, 0.0), (event.end_ns - since_ns) / 1e9)
        elif isinstance(event, Received) or (event.kind is Kind.LOOKUP and getattr(event, "returned", 0) is None):
            last[event.request, event.kind.value] = event.end_ns
    return longest


def test_a_scheduler_reports_its_spare_capacity() -> None:
    """None while all slots are taken, and all of the time once nothing is left to do."""
    made = queued("OffloadingConnector", 2, 24)
    beats = [event for event in made.events if isinstance(event, Heartbeat) and event.recorder == made.scheduler]
    last = max(event.end_ns for event in made.events if event.kind is Kind.REQUEST)
    begun = [e.end_ns for e in made.events if isinstance(e, Schedule) and (e.request or "").startswith("hit")]
    full = [beat for beat in beats if begun[2] < beat.end_ns < begun[-1]]
    after = [beat for beat in beats if beat.end_ns > last]
    spare = [
        (beats[-1].scheduler_spare_ns or 0),
        *((beat.scheduler_spare_ns or 0) for beat in (full[0], full[-1], after[0])),
    ]
    assert full[-1].end_ns - full[0].end_ns > 300 * 10**9
    assert spare[2] - spare[1] < 0.05 * (full[-1].end_ns - full[0].end_ns)
    assert spare[0] - spare[3] > 0.8 * (beats[-1].end_ns - after[0].end_ns) > 0
