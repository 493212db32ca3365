"""Real engines on the CPU with windows and with recurrent states: what is wrong in a block of any group is found where the
block is looked at, with what it holds instead, and nothing that is right is accused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import forks
import pytest
from byte_engines import found
from engines import OneEngine
from group_engines import (
    GroupEngine,
    Injected,
    OtherBoundary,
    Place,
    exchanged_groups,
    misdirected,
    named_places,
    prompts,
    rewritten,
    shifted_table,
    zeros,
)
from group_store import GroupStoreConnector
from memory import MemoryTransport
from recording import recording

from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.fingerprints.result import Origin
from kvtrail.connector.recording import exporter
from kvtrail.tracer.history.history import load

pytest_plugins = ["engines"]
MODELS: dict[str, dict[str, Any]] = {"gemma3": {}, "lfm2": {"max_num_batched_tokens": 96}}
TRACE = "trace.jsonl"
ALL = {"fingerprints": "all"}


@pytest.fixture(scope="module")
def built(one_engine: OneEngine, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GroupEngine]:
    """Builds engines, one at a time: the next ends the one before. What they record goes nowhere."""
    folder, made = tmp_path_factory.mktemp("models"), list[GroupEngine]()

    def build(model: str, kvtrail: dict[str, Any], **overrides: Any) -> GroupEngine:
        def engine() -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(exporter, "from_environment", lambda: exporter.InProcessExporter(MemoryTransport()))
                made[:] = [GroupEngine.built(folder / model, model, kvtrail, **{**MODELS[model], **overrides})]
            return made[0].llm

        one_engine.get(object(), engine)
        return made[0]

    return build


@pytest.fixture(scope="module", params=MODELS)
def shared(request: pytest.FixtureRequest, built: Callable[..., GroupEngine]) -> GroupEngine:
    return built(request.param, {})


@dataclass
class Case:
    """Prompts of one test alone, on an engine that has computed them, and loaded them, under default settings."""

    engine: GroupEngine
    jobs: list[DemoRequest]

    def cached(self, job: str) -> list[Place]:
        """The blocks of the prefix cache that hold a prompt's beginning."""
        return self.engine.cached(f"loaded-{job}")


_seeds = count()


@pytest.fixture
def case(shared: GroupEngine) -> Case:
    made = Case(shared, prompts(random.Random(next(_seeds)), 3))
    assert shared.scheduler.reset_prefix_cache(reset_connector=True)
    for prefix in ("computed", "loaded"):
        assert shared.scheduler.reset_prefix_cache()
        shared.results.clear()
        shared.round(made.jobs, prefix)
        assert not shared.mismatches()
    shared.results.clear()
    shared.checked.clear()
    return made


def has_states(engine: GroupEngine) -> bool:
    return bool(engine.worker_side.groups[0].boundary)


FAULTS: dict[str, Callable[[], Any]] = {
    "exchanged groups": lambda: exchanged_groups,
    "a shifted table": lambda: shifted_table,
    "another boundary": OtherBoundary,
    "freed and written to": lambda: rewritten,
    "zeros": lambda: zeros,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_in_a_block_that_is_taken_over_is_found(case: Case, fault: str) -> None:
    injected = Injected(case.engine, random.Random(1), [FAULTS[fault]()])
    for job in case.jobs:
        injected.into(case.cached(job.id))
    case.engine.round(case.jobs, "wrong")
    assert injected.looked_at(["admitted"])
    assert not injected.missed(["admitted"])


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_in_a_load_is_found(case: Case, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    injected = Injected(case.engine, random.Random(2), [FAULTS[fault]()])
    monkeypatch.setattr(GroupStoreConnector, "load", injected.into_loads(1.0))
    assert case.engine.scheduler.reset_prefix_cache()
    case.engine.round(case.jobs, "wrong")
    assert injected.looked_at(["loaded"]) == len(injected.touched) > 0
    assert not injected.missed(["loaded"])


@pytest.mark.parametrize("group", [0, 1])
def test_a_write_through_another_requests_table_is_found(case: Case, group: int) -> None:
    """The model runner's own table is wrong: the scheduler knows nothing of it."""
    victims = [place for place in case.cached("p0") if place.group == group]
    other = prompts(random.Random(f"other {group}"), 1)
    with misdirected(case.engine, random.Random(group), "other", victims) as written:
        case.engine.round(other, "other")
    case.engine.results.clear()
    case.engine.round(case.jobs[:1], "wrong")
    assert [(result.group, found.token, found.block) for result, found in case.engine.mismatches()] == [
        (victim.group, victim.token, victim.block) for victim in written
    ]
    assert written


def test_a_block_of_another_group_is_named_with_its_group(case: Case) -> None:
    if has_states(case.engine):
        pytest.skip("its groups' blocks are of other sizes: what is of another group is unlike anything known")
    places = case.cached("p0")
    window = next(place for place in places if place.group == 0)
    full = next(place for place in places if place.group == 1 and place.token == window.token)
    (held,) = case.engine.bytes_of([full])
    case.engine.write(window, held)
    case.engine.round(case.jobs[:1], "wrong")
    ((result, found),) = case.engine.mismatches()
    assert (result.group, found.token, found.block) == (0, window.token, window.block)
    assert isinstance(found.holds, Origin)
    assert (found.holds.request_id.partition("-")[2].rpartition("-")[0], found.holds.token) == ("p0", window.token)
    assert found.holds.group == 1


def _of_another_group(folder: Path) -> None:
    """A block of the window holds what full attention computed for the same tokens."""
    with recording(folder / TRACE):
        engine = GroupEngine.built(folder / "model", "gemma3", {})
        jobs = prompts(random.Random(0), 1)
        for prefix in ("computed", "loaded"):
            engine.scheduler.reset_prefix_cache()
            engine.round(jobs, prefix)
        places = engine.cached("loaded-p0")
        window = next(place for place in places if place.group == 0)
        (held,) = engine.bytes_of(p for p in places if p.group == 1 and p.token == window.token)
        engine.write(window, held)
        engine.round(jobs, "wrong")
        engine.llm.llm_engine.engine_core.shutdown()


def test_the_finding_names_the_group_of_the_block_and_the_group_of_its_content(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    process = forks.start(_of_another_group, tmp_path, out=log)
    process.join()
    assert process.exitcode == 0, log.read_text()[-3000:]
    (finding,) = found(list(load([tmp_path / TRACE]).events))
    token = finding.numbers["tokens"][0]
    assert (finding.rule, finding.numbers["group"]) == ("byte-drift", 0)
    assert (
        f"of KV cache group 0, at this request's token {token}, holds what request computed-p0" in finding.explanation
    )
    assert finding.explanation.endswith(f"computed for KV cache group 1 at token {token}.")


def test_a_table_that_is_shifted_by_a_block_is_named_so(case: Case) -> None:
    chain = [place for place in case.cached("p0") if place.group == 1]
    for place, held in zip(chain[1:], case.engine.bytes_of(chain[:-1]), strict=True):
        case.engine.write(place, held)
    case.engine.round(case.jobs[:1], "wrong")
    shifts = [
        found.token - found.holds.token
        for result, found in case.engine.mismatches()
        if result.group == 1 and isinstance(found.holds, Origin)
    ]
    assert len(shifts) > 3
    assert set(shifts) == {32}


def test_a_state_of_another_boundary_is_named_by_the_tokens_that_it_has_seen(case: Case) -> None:
    if not has_states(case.engine):
        pytest.skip("this model has no states")
    (whole,) = prompts(random.Random("states"), 1)
    beginning = DemoRequest("beginning", whole.prompt[:110], 3)  # vLLM keeps the state at a prompt's last boundary
    for job in (beginning, whole):
        case.engine.round([job], "first")
    before, last = [place for place in case.engine.cached("first-p0") if place.group == 0]
    (held,) = case.engine.bytes_of([before])
    case.engine.write(last, held)
    case.engine.round([whole], "wrong")
    ((result, found),) = case.engine.mismatches()
    assert (result.group, found.kind, found.token) == (0, "rot", last.token)
    assert [place.token for place in named_places(case.engine)] == [before.token] == [96]
    assert before.token < last.token


def test_a_block_of_a_running_requests_window_that_changes_is_rot(
    built: Callable[..., GroupEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes to a block that a request still sees, and to one that it does not see any more."""
    engine = built("gemma3", ALL)
    checks, managers = engine.scheduler.connector._kvtrail_checks._scheduler, engine.scheduler.kv_cache_manager
    plan_step = checks.plan_step
    first_table: list[int] = []
    held: list[int] = []
    freed: list[int] = []

    def stray(output: Any, number: int) -> Any:
        for request_id, blocks in managers.coordinator.single_type_managers[0].req_to_blocks.items():
            ids = [block.block_id for block in blocks]
            if request_id.startswith("0-p0") and not first_table:
                first_table.extend(ids)
            if request_id.startswith("0-p0") and number == 20:
                first = next(n for n, block in enumerate(ids) if block)
                held.append(ids[first + 1])
                freed.append(first_table[first - 1])
                for view in engine.worker_side.views[0]:
                    view[held + freed] = 7.0
        return plan_step(output, number)

    monkeypatch.setattr(checks, "plan_step", stray)
    engine.round([DemoRequest("p0", prompts(random.Random(0), 1)[0].prompt, 60)], "0")
    assert all(freed)
    assert {(result.group, found.kind, found.block) for result, found in engine.mismatches()} == {(0, "rot", *held)}


RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a window, all bytes": ("gemma3", ALL, {}),
    "a window, asynchronous scheduling": ("gemma3", ALL, {"async_scheduling": True}),
    "a window, preemptions": ("gemma3", ALL, {"num_gpu_blocks_override": 44, "max_num_batched_tokens": 96}),
    "states, all bytes": ("lfm2", ALL, {}),
    "states, asynchronous scheduling": ("lfm2", ALL, {"async_scheduling": True}),
    "states within blocks": ("lfm2", ALL, {"block_size": 64, "prefix_match_unit": 32, "max_num_batched_tokens": 512}),
}


LONG = ("a window, asynchronous scheduling", "states, all bytes")
"""What others here show as well."""


@pytest.mark.parametrize("run", [pytest.param(r, marks=pytest.mark.long) if r in LONG else r for r in RUNS])
def test_nothing_is_found_where_nothing_is_wrong(built: Callable[..., GroupEngine], run: str) -> None:
    model, kvtrail, overrides = RUNS[run]
    engine = built(model, kvtrail, **overrides)
    jobs = [DemoRequest(job.id, job.prompt, 90) for job in prompts(random.Random(5), 5, longest=300)]
    for number in range(3):
        if number == 1:
            assert engine.scheduler.reset_prefix_cache()
        engine.round(jobs, str(number))
    counts = engine.counted()
    assert engine.mismatches() == []
    for group in (0, 1):
        assert min(counts[kind, group] for kind in ("computed", "loaded", "admitted")) > 2, counts
        assert counts["unknown", group] == 0
    assert counts["held", 1] > 100
    assert bool(counts["held", 0]) == (model == "gemma3")


def test_places_are_those_of_the_prefix_cache(case: Case) -> None:
    """What the faults of this file are put into."""
    places = case.cached("p0")
    assert {place.group for place in places} == {0, 1}
    assert all(isinstance(place, Place) and place.block for place in places)
