"""Copies beside the steps: they run as late as may be, on vLLM's real scheduler, and no step reads a wrong byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the scheduler is vLLM's")

import torch

from kvtrail.connector.offload import transfers
from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group
from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.offload.plan import Copy
from kvtrail.connector.offload.transfers import Transfers
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.check.trial import failures
from kvtrail.connector.simulate.run import Played, play

EXTRA = {"chunk_size": 64, "cpu_bytes_to_use": 2_000_000, "load_async": True}
CONNECTOR = {**configuration("OffloadConnector", EXTRA), "kv_load_failure_policy": "recompute"}


class LateQueue:
    """Runs copies in their order when somebody waits for one, or now and then when somebody asks, by seed."""

    seeds = count()

    def __init__(self) -> None:
        self._rng = random.Random(next(self.seeds))
        self._waiting: list[tuple[Late, Callable[[], None]]] = []

    def submit(self, copy: Callable[[], None]) -> Late:
        ticket = Late(self)
        self._waiting.append((ticket, copy))
        return ticket

    def shutdown(self) -> None:
        self.run_until(None)

    def asked(self, ticket: Late) -> None:
        if self._rng.random() < 0.2:
            self.run_until(ticket)

    def run_until(self, last: Late | None) -> None:
        while self._waiting and not (last and last.has_run):
            ticket, copy = self._waiting.pop(0)
            ticket.has_run = True
            try:
                copy()
            except Exception as error:
                ticket.error = error


class Late:
    """A copy of a `LateQueue`."""

    def __init__(self, queue: LateQueue) -> None:
        self.has_run = False
        self.error: Exception | None = None
        self._queue = queue

    def done(self) -> bool:
        if not self.has_run:
            self._queue.asked(self)
        return self.has_run

    def result(self) -> None:
        self._queue.run_until(self)
        if self.error is not None:
            raise self.error


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    LateQueue.seeds = count()
    monkeypatch.setattr(transfers, "CopyThread", LateQueue)


def played(profile: str, seed: int) -> Played:
    scenario = scenario_of(profile, seed)
    scenario = replace(scenario, resets=tuple(replace(each, running=False) for each in scenario.resets))
    return play(scenario, CONNECTOR, own_workers=True, observed=True)


RUNS = [("async", 1), ("preemption-storm", 2), ("groups", 3)]
MORE = [("groups", 6), ("abort", 2), ("reset", 1), ("mixed", 1)]


@pytest.mark.parametrize(("profile", "seed"), [*RUNS, *(pytest.param(*each, marks=pytest.mark.long) for each in MORE)])
def test_late_copies_are_right(profile: str, seed: int, late: None) -> None:
    seen = played(profile, seed)
    assert failures(seen) == []
    assert seen.loads_read > 0
    assert any(lookup.is_async for lookup in seen.lookups)


@pytest.mark.parametrize(("profile", "seed"), [("preemption-storm", 2), ("groups", 3)])
def test_without_waiting_for_the_blocks_that_are_given_away_bytes_are_wrong(
    profile: str, seed: int, late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transfers, "wait_for_blocks", lambda self, given: None)
    assert any(failure.kind == "bytes" for failure in failures(played(profile, seed)))


def test_a_load_that_is_reported_before_it_has_ended_is_found(late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: Transfers) -> set[str]:
        loads, self._loads = set(self._loads), {}
        return loads

    monkeypatch.setattr(Transfers, "take_loaded", hasty)
    assert any(failure.kind == "bytes" for failure in failures(played("async", 1)))


@contextmanager
def loading(folder: Path, memory_load: Callable[..., None]) -> Iterator[BareScheduler]:
    """An engine with a prefix that is stored and then forgotten by vLLM, and a request that waits for its load."""
    bare = BareScheduler(folder, {**CONNECTOR, "kv_connector": "UntracedOffloadConnector"}, own_workers=True)
    bare.add("first", list(range(3, 203)), 2)
    bare.run()
    assert bare.scheduler.reset_prefix_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostMemory, "load", memory_load)
        bare.add("second", list(range(3, 203)), 2)
        yield bare


def test_a_load_that_fails_is_computed_again(tmp_path: Path, late: None) -> None:
    def fail(self: HostMemory, copies: Any) -> None:
        raise OSError("the host memory is gone")

    with loading(tmp_path, fail) as bare:
        reported: list[Any] = []
        bare.observers.append(lambda output, report: reported.append(report))
        for _ in range(100):
            bare.step()
        assert not bare.scheduler.requests, "it would ask for the same chunks for ever"
    failed = [n for n, report in enumerate(reported) if report.invalid_block_ids]
    received = [n for n, report in enumerate(reported) if report.finished_recving]
    assert len(failed) == len(received) == 1
    assert failed <= received, "the blocks come no later than the end"
    assert len(reported[failed[0]].invalid_block_ids) == 6, "of the three chunks"
    assert bare.worker is not None
    assert bare.worker.model is not None
    read = [each for each in bare.worker.model.wrong if not each.startswith("the workers reported the load of second")]
    assert read == [], "it was not in place when it was reported, and has not been read"


def test_a_request_waits_and_others_run(tmp_path: Path, late: None) -> None:
    with loading(tmp_path, HostMemory.load) as bare, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Late, "done", lambda self: False)
        bare.add("other", list(range(300, 400)), 20)
        for _ in range(5):
            bare.step()
        second = bare.scheduler.requests["second"]
        assert second.status.name == "WAITING_FOR_REMOTE_KVS"
        assert bare.scheduler.requests["other"].num_output_tokens > 0


def transfers_of(cache: torch.Tensor) -> Transfers:
    memory = HostMemory(OffloadConfig(4, 4, (Group(4, 1),), 4, load_async=True), num_blocks=len(cache))
    memory.register({"layer": cache})
    return Transfers(memory, beside=True)


def test_a_store_that_fails_ends_the_engine_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What host memory holds must not be taken for a chunk of that key."""
    beside = transfers_of(torch.zeros(8, 4))

    def fail(self: HostMemory, copies: Any) -> None:
        raise OSError("the host memory is gone")

    monkeypatch.setattr(HostMemory, "store", fail)
    beside.store([Copy("r", 0, 4, 0, 0, (3,), "")])
    with pytest.raises(OSError, match="the host memory is gone"):
        beside.wait_for_blocks({3})
    beside.close()


def test_a_store_is_awaited_where_one_of_its_blocks_is_given_away(late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Late, "done", lambda self: self.has_run)
    beside = transfers_of(torch.zeros(8, 4))
    beside.store([Copy("r", 0, 4, 0, 0, (3,), ""), Copy("r", 4, 4, 1, 0, (4,), "")])
    beside.wait_for_blocks({5})
    assert [store.ticket.done() for store in beside._stores] == [False]
    beside.wait_for_blocks({4, 5})
    assert beside._stores == []
    beside.close()


def test_the_thread_copies_in_order() -> None:
    """What is loaded from a slot is what the store before has left there, also where the next store overwrites it."""
    cache = torch.arange(8.0)[:, None].repeat(1, 4)
    beside = transfers_of(cache)
    assert isinstance(beside._queue, ThreadPoolExecutor)
    beside.store([Copy("a", 0, 4, 0, 0, (1,), "")])
    beside.load([Copy("b", 0, 4, 0, 0, (5,), "")])
    beside.store([Copy("c", 0, 4, 0, 0, (2,), "")])
    beside.load([Copy("d", 0, 4, 0, 0, (6,), "")])
    beside.close()
    assert beside.take_loaded() == {"b", "d"}
    assert not beside.take_loaded()
    assert not beside.take_failed()
    assert cache[:, 0].tolist() == [0, 1, 2, 3, 4, 1, 2, 7]
