"""A pytest plugin: ends a test that hangs, and only a test that hangs, however slow or busy the machine is.

Patience is spent while the test and the processes below it compute, and while all of them wait for something. It is not spent
while one of them is ready to run and other programs have the processor. So tests need no time-outs of their own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
from processor_time import processes_below, processor_s

LIMIT_S = 300.0
"""The patience with one phase of a test: its set-up, itself, or its end."""
LONG_S = 3000.0
"""The same for a test that is marked `long`."""
LOOKS_EACH_S = 2.0


class Patience:
    """Adds up the time in which the processor was not kept from a process and those below it.

    Attributes:
        spent_s: seconds since it was made, as of the last look.
    """

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._looked_s, self._computed_s, self._delays_ns = time.monotonic(), processor_s(), self._delays()

    def look(self) -> None:
        """Count since the last look the time computed or, if longer, the time in which no thread was kept waiting.

        A quarter of the time counts in any case: threads that have nothing to do with what is awaited are kept waiting, too.
        """
        now_s, computed_s, delays_ns = time.monotonic(), processor_s(), self._delays()
        passed_s = now_s - self._looked_s
        delayed_s = sum(max(0, ns - self._delays_ns.get(thread, 0)) for thread, ns in delays_ns.items()) / 1e9
        self.spent_s += max(computed_s - self._computed_s, passed_s - delayed_s, passed_s / 4)
        self._looked_s, self._computed_s, self._delays_ns = now_s, computed_s, delays_ns

    @staticmethod
    def _delays() -> dict[str, int]:
        """Nanoseconds for which each thread has been ready to run and did not (Linux, sched-stats.rst), by its path."""
        delays = {}
        for process in processes_below(os.getpid()):
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{process}/task").iterdir():
                    with contextlib.suppress(OSError):
                        delays[str(thread)] = int((thread / "schedstat").read_text().split()[1])
        return delays


class Watchdog:
    """A thread that looks after the current phase, and interrupts the main thread when the patience with it is spent."""

    def __init__(self) -> None:
        self._limit_s: float | None = None
        self._stderr = os.dup(2)  # not captured
        signal.signal(signal.SIGALRM, _interrupt)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        self._phases = 0

    @contextlib.contextmanager
    def watching(self, limit_s: float) -> Iterator[None]:
        self._phases, self._limit_s = self._phases + 1, limit_s
        try:
            yield
        finally:
            self._limit_s = None

    def _watch(self) -> NoReturn:
        phase, patience = 0, Patience()
        while True:
            time.sleep(LOOKS_EACH_S)
            if (limit_s := self._limit_s) is None:
                continue
            if phase != self._phases:  # most phases are over before they are looked at
                phase, patience = self._phases, Patience()
                continue
            patience.look()
            if patience.spent_s > 2 * limit_s:  # the main thread cannot be interrupted
                faulthandler.dump_traceback(self._stderr)
                os._exit(3)
            if patience.spent_s > limit_s and self._limit_s is not None and phase == self._phases:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    def _phase(self, item: pytest.Item) -> contextlib.AbstractContextManager[None]:
        return self.watching(LONG_S if item.get_closest_marker("long") else LIMIT_S)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        with self._phase(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        with self._phase(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        with self._phase(item):
            return (yield)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    pytest.fail("the watchdog ended it: this waits for something that does not come, or computes for ever")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", default=None):
        return  # its workers run the tests
    config.pluginmanager.register(Watchdog(), "watching")
