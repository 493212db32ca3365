"""Slow threads: a task that a connector's worker submits to a thread pool begins at the end of a step, or when it is awaited.
The step waits until the tasks that have begun end, so that a run does not depend on the machine's speed.

A copy in memory ends before the next step, so a worker that fails to wait for it looks correct. On a GPU, on a disk or over
a network, a copy takes longer. A pool of one thread runs its tasks in the order of submission. In a pool of several threads,
a task may end before earlier ones.
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
"""After this many seconds without a step, a task must be awaited in an unobserved way, and all tasks begin at once."""
BESIDE = 4
"""A task begins within this many times `latest_steps` steps: a freed block is reused only after all other free blocks, so a
shorter delay would hide races."""
_submit, _shutdown = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown


class _Late(Future[Any]):
    """The result of a task that begins late, or as soon as somebody waits for it."""

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
        """The list to which `concurrent.futures.wait` and `as_completed` add waiters."""
        self._begin(self)
        return self._entered

    @_waiters.setter
    def _waiters(self, waiters: list[Any]) -> None:
        self._entered = waiters


class SlowThreads:
    """The pools of threads of one run."""

    def __init__(self, latest_steps: int, seed: int) -> None:
        """A task begins within `BESIDE * latest_steps` steps."""
        self._latest_steps, self._rng = latest_steps, random.Random(f"threads {seed}")
        self._waiting: list[_Late] = []
        self._begun: list[_Late] = []
        """The tasks that have begun in this step."""
        self._step = 0
        self._lock = threading.Lock()
        self._stepped, self._ended = threading.Event(), threading.Event()

    @property
    def has_waiting(self) -> bool:
        """Whether a task has not begun yet."""
        return bool(self._waiting)

    def submit(self, executor: ThreadPoolExecutor, task: Callable[[], Any]) -> Future[Any]:
        """Submit a task, which begins at the end of a step, or at once if nothing is delayed."""
        with self._lock:
            before = max((each.due for each in self._waiting if _comes_before(each, executor)), default=0)
            due = max(before, self._step + self._rng.randint(0, BESIDE * self._latest_steps))
            late = _Late(executor, due, task, self._begin)
            self._waiting.append(late)
        if not self._latest_steps:
            self._begin(late)
        return late

    def begin_all(self, executor: ThreadPoolExecutor) -> None:
        """Begin all tasks of a pool, which is shut down."""
        for late in [each for each in self._waiting if each.executor is executor]:
            self._begin(late)

    def step(self) -> None:
        """End a step: begin the tasks that are due, and wait for all that have begun in it."""
        self._step += 1
        self._stepped.set()
        for late in [late for late in self._waiting if late.due <= self._step]:
            self._begin(late)
        with self._lock:
            begun, self._begun = self._begun, []
        wait(begun, timeout=HUNG_S)

    def watch(self) -> None:
        """Until the run ends, watch for a pause without steps; after one, let all tasks begin at once."""
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
        """Begin a task, after the tasks that must precede it."""
        with self._lock:
            if late not in self._waiting:
                return
            until = self._waiting.index(late) + 1
            begin = [each for each in self._waiting[:until] if each is late or _comes_before(each, late.executor)]
            self._waiting = [each for each in self._waiting if each not in begin]
            self._begun += begin
        for each in begin:
            if each.set_running_or_notify_cancel():
                _submit(each.executor, _run, each)


def _comes_before(earlier: _Late, executor: ThreadPoolExecutor) -> bool:
    """Whether an earlier task must begin before a new one of this pool."""
    return earlier.executor is executor and executor._max_workers == 1


def _run(late: _Late) -> None:
    try:
        result = late.task()
    except BaseException as error:  # anything that a task raises, as in `concurrent.futures`
        late.set_exception(error)
    else:
        late.set_result(result)


@contextmanager
def slow_threads(workers: Workers) -> Iterator[SlowThreads]:
    """Delay the tasks of this process's thread pools during one run, within its workers' `latest_steps`."""
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
