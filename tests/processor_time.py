"""A pytest plugin: processor seconds of each test and fixture, by folder and in all.

The time is that of the test process and of all processes below it: engines, sidecars, browsers. It hardly depends on what
else the machine does, so a budget can be kept in it. `--budget` turns the limits below into failures.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMED_S, TEST_S, COSTLY_S = 10.0, 30.0, 60.0
"""A test beyond the first is named, unless it is marked `costly`, and beyond the second it breaks the budget. The third is
the bound of a test that is marked and of a shared fixture: both start engines, and a slow processor takes twice as long."""
IN_ALL_S = 2500.0
"""The budget of all tests, on a slow processor."""
SHOWN = 20
TICKS = os.sysconf("SC_CLK_TCK")
SUMMARY = Path(__file__).parents[1] / "test-artifacts" / "processor-time.txt"
"""Where a run in several processes leaves what was measured."""


def processes_below(pid: int) -> Iterator[int]:
    """A process, and all those that it and its children have started and that live."""
    waiting = [pid]
    while waiting:
        yield (current := waiting.pop())
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{current}/task"):
                waiting += map(int, Path(f"/proc/{current}/task/{thread}/children").read_text().split())


def processor_s() -> float:
    """Processor seconds of this process, of those below it, and of those whose end was waited for."""
    ticks = 0
    for process in processes_below(os.getpid()):
        with contextlib.suppress(OSError):
            after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, after_name[11:15]))  # utime, stime, cutime, cstime
    return ticks / TICKS


@dataclass(eq=False)
class ProcessorTime:
    """Measures in each process of tests, and sums up in the one that reports.

    Attributes:
        enforced: whether the budget is.
        has_workers: whether other processes run the tests, which measure themselves.
        tests: seconds by test, without its shared fixtures.
        fixtures: seconds by shared fixture: its name, and the file that has it.
        folders: seconds by folder.
        rest: seconds outside of tests: imports, collection, and the end.
        excused: the reasons of tests that are marked `costly`.
    """

    enforced: bool
    has_workers: bool
    tests: Counter[str] = field(default_factory=Counter)
    fixtures: Counter[str] = field(default_factory=Counter)
    folders: Counter[str] = field(default_factory=Counter)
    rest: float = 0.0
    excused: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    _read: float = 0.0
    _fixtures: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def _since_last(self) -> float:
        """Seconds since the last call. They never run backwards, though a process may end that nobody waits for."""
        before, now = self._read, time.process_time() if self.has_workers else processor_s()
        self._read = max(before, now)
        return self._read - before

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before, inside = processor_s(), sum(self._fixtures.values())
        try:
            return (yield)
        finally:
            more = sum(self._fixtures.values()) - inside  # of the fixtures that this one has asked for
            where = fixturedef.baseid or "plugin"
            self._fixtures[f"fixture {fixturedef.argname} of {where}"] += max(0.0, processor_s() - before - more)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        costly = item.get_closest_marker("costly")
        report.processor_time = {  # type: ignore[attr-defined]  # a report carries what it is given to the other process
            "seconds": self._since_last(),
            "fixtures": dict(self._fixtures),
            "costly": None if costly is None else costly.args[0],
        }
        self._fixtures.clear()
        return report

    @pytest.hookimpl
    def pytest_collection_finish(self) -> None:
        self.rest += self._since_last()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.rest += self._since_last()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["processor_s_of_rest"] = self.rest
        elif self.enforced and session.exitstatus == 0 and self.judge():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self.rest += getattr(node, "workeroutput", {}).get("processor_s_of_rest", 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        taken = report.__dict__.get("processor_time")
        if taken is None:
            return
        self.folders["/".join(Path(report.nodeid.partition("::")[0]).parts[:3][:-1])] += taken["seconds"]
        self.tests[report.nodeid] += taken["seconds"] - sum(taken["fixtures"].values())
        self.fixtures.update(taken["fixtures"])
        if taken["costly"]:
            self.excused[report.nodeid] = taken["costly"]

    def in_all_s(self) -> float:
        return self.folders.total() + self.rest

    def judge(self) -> list[str]:
        """What is over the budget."""
        bounds = dict.fromkeys(self.fixtures, COSTLY_S) | dict.fromkeys(self.excused, COSTLY_S)
        taken = self.tests + self.fixtures
        self.broken = [f"{name} took {s:.1f} s" for name, s in taken.items() if s > bounds.get(name, TEST_S)]
        if self.in_all_s() > IN_ALL_S:
            self.broken.append(f"all tests took {self.in_all_s():.0f} s")
        return self.broken

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.tests:
            return
        terminalreporter.section("processor seconds")
        for line in self.summary():
            terminalreporter.write_line(line)
        if self.has_workers:
            SUMMARY.parent.mkdir(exist_ok=True)
            SUMMARY.write_text("".join(f"{line}\n" for line in self.summary()))

    def summary(self) -> Iterator[str]:
        dearest = (self.tests + self.fixtures).most_common(SHOWN)
        for name, seconds in dearest:
            yield f"{seconds:8.1f}  {name}"
        for name, seconds in (self.tests + self.fixtures).most_common():
            if seconds > NAMED_S and name not in self.excused and not name.startswith("fixture "):
                yield f"beyond {NAMED_S:.0f} s and not marked costly: {name} ({seconds:.1f} s)"
        yield "by folder:"
        for folder, seconds in self.folders.most_common():
            yield f"{seconds:8.1f}  {folder}"
        yield f"{self.rest:8.1f}  imports, collection and the end"
        yield f"{self.in_all_s():8.1f}  in all, of {IN_ALL_S:.0f}"
        for each in self.broken:
            yield f"OVER BUDGET: {each}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", action="store_true", help="fail if tests take more processor time than they may")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "costly(reason): may take more than 10 processor seconds")
    has_workers = not hasattr(config, "workerinput") and bool(config.getoption("numprocesses", default=None))
    config.pluginmanager.register(ProcessorTime(config.getoption("--budget"), has_workers), "processor-time")
