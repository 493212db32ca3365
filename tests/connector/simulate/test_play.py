"""A scenario is played the same way each time, and what is kept of it is what a tracer would have received."""

from __future__ import annotations

import gc
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from kvtrail.connector.fingerprints.references import References
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.redrive.recorded import recorded_requests
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import Abort, Arrival, CachesReset, Scenario, Workers, tokens
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import (
    Alloc,
    CacheReset,
    LoadError,
    Lookup,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
)
from kvtrail.tracer.ingest import decode

OFFLOAD = {"kv_connector": "OffloadConnector", "kv_connector_extra_config": {"chunk_size": 64}}
STALE = {"kv_connector": "Faulty:stale-lookup:OffloadConnector", "kv_connector_module_path": "kvtrail.connector"}
HEAD = ("head", 256)
CROWD = Scenario(
    arrivals=(
        *(Arrival(f"r-{n}", (HEAD, (f"tail-{n}", 300)), 40, at_step=2 * n) for n in range(8)),
        Arrival("again", (HEAD, ("tail-0", 300)), 4, at_step=220),
    ),
    aborts=(Abort("r-3", 30),),
    resets=(CachesReset(210), CachesReset(215, connector=True)),
)


def numbers(events: Any) -> list[tuple[Any, ...]]:
    """What the events say, but for heartbeats, which come by the clock."""
    of_requests = (e for e in events if e.kind != "kv.recorder")
    return [(e.kind, e.request, e.request_sequence, e.epoch, e.numbers(), e.error) for e in of_requests]


def test_the_same_scenario_gives_the_same_history() -> None:
    first, second = play(CROWD, OFFLOAD), play(CROWD, OFFLOAD)
    assert (first.error, first.findings, first.unfinished) == (None, [], {})
    assert numbers(first.events) == numbers(second.events)
    assert first.steps == second.steps
    other = play(replace(CROWD, seed=1), OFFLOAD)
    assert numbers(other.events) != numbers(first.events), "the model's answers are the seed's"


def test_what_is_kept_is_what_a_tracer_would_have_received() -> None:
    played = play(CROWD, OFFLOAD)
    received = [event for span in played.spans if (event := decode.from_span(span)) is not None]
    assert received == played.events
    assert {"kv.preempt", "kv.cache.reset", "kv.reset", "kv.store.plan", "kv.recorder"} <= {e.kind for e in received}


LATE = {"kv_connector": "OffloadConnector", "kv_connector_extra_config": {"chunk_size": 64, "load_async": True}}


def test_a_reset_of_running_requests_waits_as_long_as_a_load_holds_blocks() -> None:
    scenario = Scenario(
        arrivals=(
            Arrival("stores", (HEAD, ("a", 1))),
            Arrival("runs", (("b", 64),), 60, at_step=20),
            Arrival("loads", (HEAD, ("c", 40)), 2, at_step=22),
        ),
        resets=(CachesReset(18), CachesReset(24, running=True)),
        workers=Workers(latest_steps=20, seed=1),
    )
    played = play(scenario, LATE, own_workers=True)
    assert played.error is None, "vLLM raises when its cache is reset during a load"
    order = [event.kind for event in played.events if isinstance(event, CacheReset | Received | Preempt)]
    assert order == ["kv.cache.reset", "kv.received", "kv.cache.reset", "kv.preempt", "kv.received"]


def test_a_load_that_begins_in_the_step_of_a_reset_is_of_the_new_epoch() -> None:
    """A reset preempts a request, and the next step both reports that to the connector and loads for the request again."""
    scenario = Scenario(
        arrivals=(Arrival("stores", (HEAD, ("a", 1))), Arrival("runs", (HEAD, ("b", 20)), 30, at_step=20)),
        resets=(CachesReset(18), CachesReset(40, running=True)),
        workers=Workers(latest_steps=4, load_failures=1.0, seed=1),
    )
    played = play(scenario, {**LATE, "kv_load_failure_policy": "recompute"}, own_workers=True)
    assert (played.error, played.findings) == (None, [])
    again = [event for event in played.events if event.request == "runs" and event.epoch == 1]
    kinds = [event.kind for event in again if isinstance(event, Preempt | Lookup | Alloc | LoadError | Received)]
    assert kinds[:5] == ["kv.preempt", "kv.lookup", "kv.alloc", "kv.load.error", "kv.received"]
    assert sum(isinstance(event, Preempt) for event in played.events) == 1


def test_a_scenario_goes_through_json_unchanged() -> None:
    scenario = replace(
        CROWD, workers=Workers(latest_steps=2, seed=7), settings={"max_num_batched_tokens": 96}, drafts=2
    )
    data = json.loads(json.dumps(scenario.as_dict()))
    assert Scenario.from_dict(data) == scenario
    assert "num_blocks" not in data
    with pytest.raises(ValueError, match=r"not a scenario: .*colour"):
        Scenario.from_dict({**data, "colour": "red"})


def test_the_story_contains_what_a_replay_needs() -> None:
    events = play(CROWD, OFFLOAD).events
    starts = {e.request: e for e in events if isinstance(e, RequestStart)}
    ends = {e.request: e for e in events if isinstance(e, RequestEnd)}
    assert {r: e.scheduler_step for r, e in starts.items()} == {a.id: a.at_step for a in CROWD.arrivals}
    assert (ends["r-3"].outcome, ends["r-3"].scheduler_step) == ("aborted", 30)
    hashes = {request: reported.chain.hashes for request, reported in recorded_requests(events).items()}
    assert len(hashes["r-0"]) == (556 + 40) // 32
    assert hashes["r-0"][:8] == hashes["r-5"][:8]
    assert hashes["r-0"][8] != hashes["r-5"][8]
    assert hashes["again"] == hashes["r-0"][: 556 // 32]
    assert (starts["again"].block_hashes, starts["again"].block_first) == (None, 556 // 32)
    assert starts["r-0"].limit == 40
    assert [e.scheduler_step for e in events if isinstance(e, CacheReset)] == [210, 215]
    assert tokens((HEAD, ("x", 3)))[:256] == tokens((HEAD,)) == tokens((("head", 300),))[:256]


def test_a_dead_engine_is_reported_with_its_error() -> None:
    crowd = [Arrival(f"r-{n}", ((f"r-{n}", 750),), 40) for n in range(8)]
    played = play(Scenario(arrivals=tuple(crowd)), STALE)
    assert played.error is not None
    assert played.error.startswith("AssertionError: Mismatch in tokens to load")
    assert [f.rule for f in played.findings] == ["stale-lookup"]


@pytest.mark.parametrize("latest", [0, 6])
def test_failed_and_late_loads_of_an_asynchronous_connector_cause_no_findings(latest: int) -> None:
    native = {
        "kv_connector": "TracedOffloadingConnector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 50_000_000},
    }
    late = Workers(latest_steps=latest, load_failures=0.3)
    played = play(replace(CROWD, workers=late, resets=(CachesReset(210),)), native)
    assert (played.error, played.findings, played.unfinished) == (None, [], {})
    assert any(e.kind == "kv.received" for e in played.events)


def test_a_run_leaves_nothing_behind() -> None:
    """Also one in which the engine dies. A check has thousands of them, and Python looks for cycles by the number of objects:
    an engine's are few and large."""
    scenario, connector = (
        scenario_of("preemption-storm", 0),
        {**STALE, "kv_connector_extra_config": {"chunk_size": 256}},
    )
    assert play(scenario, connector, own_workers=True, observed=True).error
    gc.collect()
    before = alive()
    gc.disable()
    try:
        play(scenario, connector, own_workers=True, observed=True)
        assert alive() == before
    finally:
        gc.enable()


def alive() -> Counter[type]:
    large = (Scheduler, Recorder, References, Detector)
    return Counter(type(each) for each in gc.get_objects() if type(each) in large)
