"""A pytest plugin: ends a test that hangs, and only a test that hangs, however slow or busy the machine is.

Patience is spent while the test or a process below it computes, and while the machine is idle: then nothing was kept from it.
It is not spent while other programs take the processor away. So tests need no time-outs of their own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
from processor_time import TICKS, processor_s

LIMIT_S = 300.0
"""The patience with one phase of a test: its set-up, itself, or its end."""
LONG_S = 3000.0
"""The same for a test that is marked `long`."""
LOOKS_EACH_S = 2.0


def patience_s() -> float:
    """Processor seconds of this process and those below it, and seconds in which the machine had nothing to do."""
    idle = Path("/proc/stat").read_text().split(maxsplit=5)[4]
    return processor_s() + int(idle) / TICKS / (os.cpu_count() or 1)


class Watchdog:
    """A thread that looks after the current phase, and interrupts the main thread when the patience with it is spent."""

    def __init__(self) -> None:
        self._limit_s: float | None = None
        self._began_s = 0.0
        self._changed = threading.Lock()
        signal.signal(signal.SIGALRM, _interrupt)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextlib.contextmanager
    def watching(self, limit_s: float) -> Iterator[None]:
        with self._changed:
            before = self._limit_s, self._began_s
            self._limit_s, self._began_s = limit_s, patience_s()
        try:
            yield
        finally:
            with self._changed:
                self._limit_s, self._began_s = before

    def _watch(self) -> NoReturn:
        while True:
            time.sleep(LOOKS_EACH_S)
            with self._changed:
                spent_s = 0.0 if self._limit_s is None else (patience_s() - self._began_s) / self._limit_s
                if spent_s > 2:  # the main thread cannot be interrupted
                    faulthandler.dump_traceback(sys.__stderr__)
                    os._exit(3)
                if spent_s > 1:
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
    pytest.fail(f"still waiting after {LIMIT_S:.0f} s in which nothing was kept from it")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", default=None):
        return  # its workers run the tests
    config.pluginmanager.register(Watchdog(), "watching")
