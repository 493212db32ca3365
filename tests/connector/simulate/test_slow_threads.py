"""Slow threads: what a worker gives to a pool of threads begins late, and whoever does not wait for it is found."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.offload.transfers import Transfers
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.check.session import check
from kvtrail.connector.simulate.run import run_more
from kvtrail.connector.simulate.scenario import Scenario, Workers
from kvtrail.connector.simulate.workers import slow_threads as module
from kvtrail.connector.simulate.workers.slow_threads import BESIDE, SlowThreads, slow_threads

LATE = Workers(latest_steps=1000, seed=1)
"""Late enough that no test comes to the step in which a task is due."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, nobody takes it for hung."""
    monkeypatch.setattr(module, "HUNG_S", threading.TIMEOUT_MAX)


@pytest.fixture
def threads() -> Iterator[SlowThreads]:
    with slow_threads(LATE) as slow:
        yield slow


@pytest.fixture
def pool(threads: SlowThreads) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_task_begins_within_so_many_steps_and_ends_with_the_step() -> None:
    done: list[int] = []
    behind = []
    with slow_threads(Workers(latest_steps=2, seed=3)) as threads, ThreadPoolExecutor(1) as pool:
        for number in range(60):
            future = pool.submit(done.append, number)
            threads.step()
            behind.append(number + 1 - len(done))
            assert future.done() is (number in done)
    assert done == [*range(60)], "in the order of their submission"
    assert 0 <= min(behind) < max(behind) <= 2 * BESIDE + 1


@pytest.mark.parametrize(
    "waits",
    [
        lambda future: future.result(),
        lambda future: future.exception(),
        lambda future: wait([future]),
        lambda future: [*as_completed([future])],
    ],
    ids=["result", "exception", "wait", "as_completed"],
)
def test_whoever_waits_for_it_makes_it_begin(pool: ThreadPoolExecutor, waits: Any) -> None:
    done: list[str] = []
    earlier, future, later = (pool.submit(done.append, name) for name in ("earlier", "this", "later"))
    assert not future.done()
    waits(future)
    assert done == ["earlier", "this"]
    assert (earlier.done(), later.done()) == (True, False)


def test_tasks_of_several_threads_end_in_any_order(threads: SlowThreads) -> None:
    done: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        earlier, future = (pool.submit(done.append, name) for name in ("earlier", "this"))
        future.result()
        assert (done, earlier.done()) == (["this"], False)


def test_the_ends_of_several_threads_differ_from_their_submission() -> None:
    """Some task ends in an earlier step than one that was submitted before it."""
    done: list[int] = []
    ended: list[int] = []
    with slow_threads(Workers(latest_steps=2, seed=3)) as threads, ThreadPoolExecutor(4) as pool:
        for number in range(20):
            pool.submit(done.append, number)
            threads.step()
            ended += sorted(set(done) - set(ended))
        assert ended != sorted(ended)
    assert sorted(done) == [*range(20)]


def test_an_error_a_callback_and_a_cancelled_task_are_as_without_delays(pool: ThreadPoolExecutor) -> None:
    ended: list[Future[Any]] = []
    wrong, cancelled = pool.submit(int, "no number"), pool.submit(int)
    wrong.add_done_callback(ended.append)
    assert cancelled.cancel()
    with pytest.raises(ValueError, match="no number"):
        wrong.result()
    assert ended == [wrong]
    with pytest.raises(CancelledError):
        cancelled.result()


def test_a_pool_that_is_shut_down_runs_what_was_submitted(threads: SlowThreads) -> None:
    done: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(5):
            pool.submit(done.append, number)
        assert not done
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_who_waits_in_a_way_of_its_own_is_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HUNG_S", 0.01)
    with slow_threads(LATE), ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            ended = threading.Event()
            pool.submit(ended.set)
            assert ended.wait()


def test_where_transfers_end_at_once_tasks_begin_at_once() -> None:
    with slow_threads(Workers(latest_steps=0)), ThreadPoolExecutor(1) as pool:
        begun = threading.Event()
        pool.submit(begun.set)
        assert begun.wait()


@pytest.mark.parametrize("latest_steps", [0, 2])
def test_a_step_waits_for_the_tasks_that_have_begun_however_slow_the_machine_is(latest_steps: int) -> None:
    done: list[int] = []

    def copies_slowly(number: int) -> None:
        time.sleep(0.01)
        done.append(number)

    with slow_threads(Workers(latest_steps=latest_steps, seed=3)) as threads, ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(copies_slowly, number) for number in range(10)]
        for _ in range(BESIDE * latest_steps + 1):
            threads.step()
            assert not any(future.running() for future in futures)
        assert done == [*range(10)]


def test_more_requests_are_run_until_no_task_waits(tmp_path: Path) -> None:
    workers = Workers(latest_steps=25, seed=3)
    with slow_threads(workers) as threads, ThreadPoolExecutor(1) as pool:
        stage = BareScheduler(tmp_path, workers=workers)
        stage.observers.append(lambda output, report: threads.step())
        futures = [pool.submit(int) for _ in range(20)]
        run_more(stage, Scenario(arrivals=(), workers=workers), (), threads=threads)
        assert all(future.done() for future in futures)
        stage.close()


def test_after_the_run_pools_are_as_before() -> None:
    submit = ThreadPoolExecutor.submit
    with slow_threads(LATE):
        assert ThreadPoolExecutor.submit is not submit
    assert ThreadPoolExecutor.submit is submit


def test_a_worker_that_does_not_wait_for_its_stores_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def checked() -> list[str]:
        config = {"load_async": True}
        found = check("OffloadConnector", config=config, profiles=["async"], runs=2, steps=None, shrink_tries=0).found
        return [each.failure.id for each in found]

    assert checked() == []
    monkeypatch.setattr(Transfers, "wait_for_blocks", lambda self, given: None)
    assert "bytes: a request has read KV that is not its own" in checked()
