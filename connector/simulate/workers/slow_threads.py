"""Slow threads: what a connector's worker gives to a pool of threads begins some steps later, or when somebody waits for it.

A copy in memory is over before the next step, so that a worker that does not wait for it looks right. On a GPU, on a disk or
over a network it takes longer. A pool of one thread runs its tasks in the order of their submission; in one of several each
takes its own time, and may end before earlier ones.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from kvtrail.connector.simulate.scenario import Workers

HUNG_S = 5.0
"""Without a step for so long, somebody waits for a task in a way that is not seen, and no task begins late any more."""
BESIDE = 4
"""A task beside the steps takes up to this many times as many of them as a transfer: blocks that are freed are given to
another request only after all other free ones."""
_submit, _shutdown = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown


class _Late(Future[Any]):
    """The result of a task that begins late: whoever waits for it makes it begin."""

    def __init__(
        self, executor: ThreadPoolExecutor, due: int, task: Callable[[], Any], begin: Callable[[Any], None]
    ) -> None:
        self.executor, self.due, self.task, self._begin = executor, due, task, begin
        super().__init__()

    def result(self, timeout: float | None = None) -> Any:
        self._begin(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._begin(self)
        return super().exception(timeout)

    @property
    def _waiters(self) -> list[Any]:
        """Where `concurrent.futures.wait` and `as_completed` enter who waits."""
        self._begin(self)
        return self._entered

    @_waiters.setter
    def _waiters(self, waiters: list[Any]) -> None:
        self._entered = waiters


class SlowThreads:
    """The pools of threads of one run."""

    def __init__(self, latest_steps: int, seed: int) -> None:
        """A task begins within `latest_steps` steps."""
        self._latest_steps, self._rng = latest_steps, random.Random(f"threads {seed}")
        self._waiting: list[_Late] = []
        self._step = 0
        self._lock = threading.Lock()
        self._stepped, self._ended = threading.Event(), threading.Event()

    def submit(self, executor: ThreadPoolExecutor, task: Callable[[], Any]) -> Future[Any]:
        """Accept a task. It begins in a later step, or at once."""
        with self._lock:
            before = max((each.due for each in self._waiting if _comes_before(each, executor)), default=0)
            due = max(before, self._step + self._rng.randint(0, BESIDE * self._latest_steps))
            late = _Late(executor, due, task, self._begin)
            self._waiting.append(late)
        if due <= self._step or not self._latest_steps:
            self._begin(late)
        return late

    def begin_all(self, executor: ThreadPoolExecutor) -> None:
        """Nothing is submitted to this pool any more."""
        for late in [each for each in self._waiting if each.executor is executor]:
            self._begin(late)

    def step(self) -> None:
        """A step has ended: run what is due to its end."""
        self._step += 1
        self._stepped.set()
        due = [late for late in self._waiting if late.due <= self._step]
        for late in due:
            self._begin(late)
        wait(due, timeout=HUNG_S)

    def watch(self) -> None:
        """Until the run ends: where no step does, let all tasks begin at once from now on."""
        while not self._ended.is_set():
            self._stepped.clear()
            if not self._stepped.wait(HUNG_S) and self._waiting:
                self._latest_steps = 0
                for late in self._waiting:
                    self._begin(late)

    def end(self) -> None:
        self._ended.set()
        self._stepped.set()

    def _begin(self, late: _Late) -> None:
        """Let a task begin, after those that come before it."""
        with self._lock:
            if late not in self._waiting:
                return
            until = self._waiting.index(late) + 1
            begin = [each for each in self._waiting[:until] if each is late or _comes_before(each, late.executor)]
            self._waiting = [each for each in self._waiting if each not in begin]
        for each in begin:
            if each.set_running_or_notify_cancel():
                _submit(each.executor, _run, each)


def _comes_before(earlier: _Late, executor: ThreadPoolExecutor) -> bool:
    """Whether an earlier task holds up a new one of this pool."""
    return earlier.executor is executor and executor._max_workers == 1


def _run(late: _Late) -> None:
    try:
        result = late.task()
    except BaseException as error:  # of whatever a task raises, as `concurrent.futures` does
        late.set_exception(error)
    else:
        late.set_result(result)


@contextmanager
def slow_threads(workers: Workers) -> Iterator[SlowThreads]:
    """Slow down the pools of threads of this process, which the steps of one run use, as much as its workers are slow."""
    slow = SlowThreads(workers.latest_steps, workers.seed)

    def submit(executor: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("asyncio."):  # it waits in ways of its own
            return _submit(executor, function, *args, **named)
        return slow.submit(executor, partial(function, *args, **named))

    def shutdown(executor: ThreadPoolExecutor, *args: Any, **named: Any) -> None:
        slow.begin_all(executor)
        _shutdown(executor, *args, **named)

    watch = threading.Thread(target=slow.watch, name="slow-threads", daemon=True)
    watch.start()
    try:
        with (
            mock.patch.object(ThreadPoolExecutor, "submit", submit),
            mock.patch.object(ThreadPoolExecutor, "shutdown", shutdown),
        ):
            yield slow
    finally:
        slow.end()
        watch.join()
