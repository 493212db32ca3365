"""`kvtrail audit --savings` on recordings of vLLM's scheduler: what it says of other sizes is what runs with them give."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from saved import given, saved_of

pytest.importorskip("vllm")
from kvtrail.connector.simulate.run import Played, play
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario
from kvtrail.tracer.events.cache_groups import FULL, MAMBA, CacheGroup
from kvtrail.tracer.events.events import Store
from kvtrail.tracer.history.savings import Saved
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
    """Within one point of the tokens asked for."""
    (recorded,) = saved_of(played(32, requests, reset_at=reset_at).events)
    measured = []
    for chunks in capacities:
        (ran,) = saved_of(played(chunks, requests, reset_at=reset_at).events)
        measured.append(ran.worth.hit_share or 0)
        assert abs(given(recorded, chunks) - measured[-1]) < 0.01, chunks
    assert measured[0] < 0.02 < 0.15 < measured[-1], "the capacities differ in what they give"


@pytest.mark.parametrize(
    ("groups", "chunk_bytes"),
    [((CacheGroup(FULL), CacheGroup(MAMBA)), 49_152)],
    ids=["states"],
)
def test_it_counts_the_bytes_of_each_kv_cache_group(groups: tuple[CacheGroup, ...], chunk_bytes: int) -> None:
    """Together with what vLLM's own cache gives; a larger store leaves less of that: a load brings only the window's end."""

    def ran(chunks: int, *, own_workers: bool = False) -> tuple[Saved, float]:
        extra = {"chunk_size": CHUNK, "cpu_bytes_to_use": chunks * chunk_bytes, "kvtrail": {"level": "detailed"}}
        scenario = Scenario(arrivals=conversations(0, REQUESTS), num_blocks=128, groups=groups)
        connector = {"kv_connector": "OffloadConnector", "kv_connector_extra_config": extra}
        done = play(scenario, connector, own_workers=own_workers)
        (saved,) = saved_of(done.events)
        copies = [event for event in done.events if isinstance(event, Store)]
        moved = sum(copy.bytes or 0 for copy in copies) / max(1, sum(copy.count for copy in copies)) * CHUNK
        return saved, moved

    saved, moved = ran(32, own_workers=True)
    assert saved.memory is not None
    assert saved.memory.chunk_bytes == chunk_bytes
    assert moved < chunk_bytes, "a chunk has room also for a state that was not at hand"
    worth = ran(64)[0].worth
    predicted = given(saved, 64) + (saved.worth.local_share or 0)
    # Within three points: what a run has stored in time varies a little from one to the next.
    assert abs(predicted - (worth.taken + worth.local) / worth.asked) < 0.03


def test_a_store_that_is_emptied_has_fewer_hits() -> None:
    (kept,), (emptied,) = (saved_of(played(256, 250, reset_at=at).events) for at in (None, 700))
    assert given(emptied, 256) < given(kept, 256)


def test_it_prints_a_table_and_what_it_comes_to(trace: Path) -> None:
    done = run("audit", "--savings", str(trace))
    assert done.exit_code == 0
    assert "Its store may hold 2 MiB on each worker, in chunks of 64 tokens." in done.output
    assert f"{REQUESTS} admissions of" in done.output
    (today,) = (line for line in done.output.splitlines() if line.endswith("today"))
    assert today.split()[:2] == ["2", "MiB"]
    assert "nothing is gained" in done.output


def test_scripts_get_the_sums_and_the_curve_of_the_page(trace: Path) -> None:
    (saved,) = json.loads(run("audit", "--savings", "--json", str(trace)).output)["savings"]
    assert saved["limit"] == 32 * CHUNK_BYTES
    assert saved["memory"]["chunk_bytes"] == CHUNK_BYTES
    assert saved["memory"]["chunk_size"] == CHUNK
    worth = saved["worth"]
    assert 0 < worth["taken"] <= saved["memory"]["wanted"] <= worth["asked"] - worth["local"]
    shares = [point["share"] for point in saved["memory"]["points"]]
    assert 0 <= shares[0] < shares[-1] < 1


def test_without_hashes_nothing_is_known_of_other_sizes(tmp_path: Path) -> None:
    file = tmp_path / "basic.jsonl"
    file.write_text(spans_to_json_line(played(32, 30, level="basic").spans) + "\n")
    done = run("audit", "--savings", str(file))
    assert done.exit_code == 3
    assert "30 admissions of" in done.output
    assert "Record with KVTRAIL_LEVEL=detailed" in done.output
    none = tmp_path / "none.jsonl"
    none.write_text("")
    assert run("audit", "--savings", str(none)).exit_code in (2, 3)
