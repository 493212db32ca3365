"""`kvtrail savings` on recordings of vLLM's scheduler: its estimates for other capacities are the hits of runs with them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import run

pytest.importorskip("vllm")
from kvtrail.connector.simulate.run import Played, play
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario
from kvtrail.tracer.capacity.estimate import estimate
from kvtrail.tracer.capacity.stream import Stream, streams_of
from kvtrail.tracer.events.cache_groups import FULL, MAMBA, CacheGroup
from kvtrail.tracer.events.events import Store
from kvtrail.tracer.ingest.otlp_json import spans_to_json_line

CHUNK = 64
CHUNK_BYTES = 65_536
REQUESTS = 80
LONG = pytest.mark.long


def conversations(seed: int, count: int) -> tuple[Arrival, ...]:
    """Prompts that begin alike, the popular ones often, branch, and end on their own."""
    rng, step, arrivals = random.Random(seed), 0, []
    for n in range(count):
        head = min(int(rng.paretovariate(0.7)), 40)
        turns = [(f"{head}/{rng.randrange(3)}", 32 * rng.randrange(1, 4)) for _ in range(rng.randrange(1, 4))]
        prompt = ((f"{head}", 32 * (6 + head % 6)), *turns, (f"own-{n}", rng.randrange(1, 60)))
        step += rng.randrange(12)
        arrivals.append(Arrival(f"r-{n}", prompt, rng.randrange(1, 24), at_step=step))
    return tuple(arrivals)


@cache
def played(
    chunks: int,
    requests: int = REQUESTS,
    *,
    level: str = "detailed",
    own_workers: bool = False,
    reset_at: int | None = None,
) -> Played:
    extra = {"chunk_size": CHUNK, "cpu_bytes_to_use": chunks * CHUNK_BYTES, "kvtrail": {"level": level}}
    connector: dict[str, Any] = {"kv_connector": "OffloadConnector", "kv_connector_extra_config": extra}
    resets = () if reset_at is None else (CachesReset(reset_at, connector=True),)
    scenario = Scenario(arrivals=conversations(0, requests), resets=resets, num_blocks=64)
    done = play(scenario, connector, own_workers=own_workers)
    assert (done.error, done.unfinished) == (None, {})
    return done


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl"
    file.write_text(spans_to_json_line(played(32, own_workers=True).spans) + "\n")
    return file


@pytest.mark.parametrize(
    ("requests", "capacities", "reset_at"),
    [
        (250, (8, 256), None),
        pytest.param(250, (8, 16, 32, 64, 128, 256), None, marks=LONG),
        pytest.param(250, (8, 16, 32, 64, 128, 256), 700, marks=LONG),
    ],
)
def test_it_predicts_the_hits_of_other_capacities(
    requests: int, capacities: tuple[int, ...], reset_at: int | None
) -> None:
    """Within one point of the tokens asked for, and never above the bound."""
    (stream,) = streams_of(played(32, requests, reset_at=reset_at).events)
    predicted = estimate(stream, sizes=capacities)
    assert [point.chunks for point in predicted.points] == list(capacities)
    given = []
    for point in predicted.points:
        (measured,) = streams_of(played(point.chunks, requests, reset_at=reset_at).events)
        given.append(measured.taken / measured.asked)
        assert abs(point.hits / stream.asked - given[-1]) < 0.01, point
        assert point.hits <= point.bound
        assert given[-1] <= point.bound / stream.asked + 0.01
    assert given[0] < 0.02 < 0.15 < given[-1], "the capacities differ in what they give"


@pytest.mark.parametrize(
    ("groups", "chunk_bytes"),
    [((CacheGroup(FULL), CacheGroup(MAMBA)), 49_152)],
    ids=["states"],
)
def test_it_counts_the_bytes_of_each_kv_cache_group(groups: tuple[CacheGroup, ...], chunk_bytes: int) -> None:
    """Together with what vLLM's own cache gives; a larger store leaves less of that: a load brings only the window's end."""

    def given(chunks: int, *, own_workers: bool = False) -> tuple[Stream, float]:
        extra = {"chunk_size": CHUNK, "cpu_bytes_to_use": chunks * chunk_bytes, "kvtrail": {"level": "detailed"}}
        scenario = Scenario(arrivals=conversations(0, REQUESTS), num_blocks=128, groups=groups)
        connector = {"kv_connector": "OffloadConnector", "kv_connector_extra_config": extra}
        done = play(scenario, connector, own_workers=own_workers)
        (stream,) = streams_of(done.events)
        copies = [event for event in done.events if isinstance(event, Store)]
        moved = sum(copy.bytes or 0 for copy in copies) / max(1, sum(copy.count for copy in copies)) * CHUNK
        return stream, moved

    stream, moved = given(32, own_workers=True)
    assert stream.chunk_bytes == chunk_bytes
    assert moved < chunk_bytes, "a chunk has room also for a state that was not at hand"
    (point,) = estimate(stream, sizes=(64,)).points
    assert point.bytes == 64 * chunk_bytes
    measured, _ = given(64)
    predicted = (point.hits + stream.local) / stream.asked
    # Within three points: what a run has stored in time varies a little from one to the next.
    assert abs(predicted - (measured.taken + measured.local) / measured.asked) < 0.03


def test_a_store_that_is_emptied_has_fewer_hits() -> None:
    (kept,), (emptied,) = (streams_of(played(256, 250, reset_at=at).events) for at in (None, 700))
    most = [estimate(stream, sizes=(256,)).points[0] for stream in (kept, emptied)]
    assert most[1].hits < most[0].hits
    assert most[1].bound < most[0].bound
    assert None in emptied.accesses
    assert None not in kept.accesses


def test_it_prints_a_table_and_what_it_comes_to(trace: Path) -> None:
    done = run("savings", str(trace))
    assert done.exit_code == 0
    assert "Its store may hold 32 chunks of 64 tokens, 2 MiB on each worker." in done.output
    assert f"{REQUESTS} admissions of" in done.output
    (today,) = (line for line in done.output.splitlines() if line.endswith("today"))
    assert today.split()[:4] == ["32", "chunks", "2", "MiB"]
    assert "1 MiB more would have saved" in done.output
    assert "of prefill an hour." in done.output
    assert "nothing is gained" in done.output


def test_sizes_are_asked_for_in_chunks_and_bytes(trace: Path) -> None:
    asked = ("--gib", str(CHUNK_BYTES * 100 / 2**30), "--chunks", "9")
    (held,) = json.loads(run("savings", "--json", *asked, str(trace)).output)["estimates"]
    assert [point["chunks"] for point in held["points"]] == [9, 32, 100]
    assert held["points"][2]["bytes"] == 100 * CHUNK_BYTES
    assert held["capacity"] == 32
    assert held["chunk_bytes"] == CHUNK_BYTES
    assert held["tokens"]["taken"] <= held["tokens"]["wanted"] <= held["tokens"]["asked"] - held["tokens"]["local"]
    (sampled,) = json.loads(run("savings", "--json", "--sample", "100", "--chunks", "64", str(trace)).output)[
        "estimates"
    ]
    assert 0 < sampled["points"][1]["error"] < 0.2 * held["tokens"]["asked"]


def test_without_hashes_nothing_is_estimated(tmp_path: Path) -> None:
    file = tmp_path / "basic.jsonl"
    file.write_text(spans_to_json_line(played(32, 30, level="basic").spans) + "\n")
    done = run("savings", str(file))
    assert done.exit_code == 3
    assert "30 admissions had no recorded block hashes" in done.output
    assert "Record with KVTRAIL_LEVEL=detailed" in done.output
    none = tmp_path / "none.jsonl"
    none.write_text("")
    assert run("savings", str(none)).exit_code in (2, 3)
    refused = run("savings", "--gib", "1", str(file))
    assert refused.exit_code == 2
    assert "give --chunks" in refused.output
