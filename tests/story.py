"""A pytest plugin: the story, which all tests of watching, of deaths and of a running demo look at.

Two demos have LMCache #2158's bug: the guard heals one, and the engine of the other dies. A third sidecar hears a scheduler
with asynchronous loads, and engines that end in different ways. Prometheus and Alertmanager watch all three.

Its tests run first, in one process (`SHARED` in conftest.py), those last that need the demo whose engine lives. Each part
begins with the first test that needs it and ends with the last one, since its processes do not rest.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from command_line import exported
from demos import Demo, Servers, children_left, demo
from processes import Tracer, free_port, serve, until
from terminals import Terminal

if TYPE_CHECKING:
    from watching import Loading, Prometheus, Webhook

T = TypeVar("T")
BUG = ("--bug", "stale-lookup")
COLUMNS, ROWS = 80, 24
WHY = "Why: stale-lookup: A cached lookup answer was handed out without regard"
PARTS = ("watch", "ending", "ended_engines", "dying_demo", "loading_engine", "living_demo")
"""The fixtures of the story."""
_running: dict[str, ExitStack] = {}
"""The parts of the story that have begun, by fixture."""
_last_uses: dict[str, pytest.Item] = {}
"""The last test that needs a part, by fixture."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> tuple[bool, bool, bool]:
        needs = getattr(item, "fixturenames", ())
        return not any(part in PARTS for part in needs), "living_demo" in needs, "watch" not in needs

    items.sort(key=turn)
    _last_uses.update((part, item) for item in items for part in getattr(item, "fixturenames", ()) if part in PARTS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    try:
        return (yield)
    finally:
        for part in [part for part in reversed(_running) if _last_uses[part] is item]:
            _running.pop(part).close()


def pytest_sessionfinish() -> None:
    while _running:
        _running.popitem()[1].close()


def _run(fixture: str, part: AbstractContextManager[T]) -> T:
    """Begin a part, which ends with the last test that needs the fixture."""
    return _running.setdefault(fixture, ExitStack()).enter_context(part)


@pytest.fixture(scope="session")
def metrics_ports() -> dict[str, int]:
    """Where vLLM's own metrics are served: Prometheus knows before anything is served there."""
    return {name: free_port() for name in ("living", "loading")}


@dataclass(frozen=True)
class Watching:
    """Who watches. `prometheus` is None where it is not installed."""

    webhook: Webhook
    prometheus: Prometheus | None
    begun_s: float


@pytest.fixture(scope="session")
def watch(metrics_ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> Watching:
    from watching import Webhook, programs, running

    webhook, begun_s, prometheus = Webhook(), time.time(), None
    if programs():
        folder = tmp_path_factory.mktemp("watching")
        prometheus = _run("watch", running(folder, [*metrics_ports.values()], webhook))
    return Watching(webhook, prometheus, begun_s)


@pytest.fixture(scope="session")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Tracer:
    """The third sidecar: it has no demo."""
    return _run("ending", _serving(tmp_path_factory.mktemp("ending")))


@contextmanager
def _serving(folder: Path) -> Iterator[Tracer]:
    tracer = serve(folder)
    yield tracer
    tracer.kill()


@pytest.fixture(scope="session")
def ended_engines(watch: Watching, ending: Tracer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The ids of the engines that have ended, by how they ended."""
    from ending_engine import end_all

    if watch.prometheus is not None:
        watch.prometheus.scrape(ending.http_port)
    return end_all(tmp_path_factory.mktemp("ended"), ending)


@dataclass
class DyingDemo(Servers):
    """A demo in a terminal, as it stands after its engine has died of the bug."""

    terminal: Terminal
    http_port: int
    dashboard_port: int

    @property
    def trace(self) -> Path:
        """A trace file of what is stored, once the engine's last heartbeat is in it."""
        folder = self.terminal.folder

        def said() -> str:
            return exported(folder / ".demo" / "kvtrail.db", folder / "trace.jsonl").read_text()

        until(lambda: "kvtrail.recorder.ended_by" in said(), why=lambda: said()[-2000:])
        return folder / "trace.jsonl"


@pytest.fixture(scope="session")
def dying_demo(watch: Watching, tmp_path_factory: pytest.TempPathFactory) -> DyingDemo:
    return _run("dying_demo", _dying(tmp_path_factory.mktemp("dying"), watch.prometheus))


@contextmanager
def _dying(folder: Path, prometheus: Prometheus | None) -> Iterator[DyingDemo]:
    """A demo whose engine dies. It is ended by Ctrl-C, after which its last lines still say why it died."""
    ports = {name: free_port() for name in ("grpc", "http", "dashboard")}
    terminal = Terminal(
        "demo", *BUG,
        *(part for name, port in ports.items() for part in (f"--{name}-port", port)),
        columns=COLUMNS, rows=ROWS, folder=folder,
    )  # fmt: skip
    try:
        terminal.until("The dashboard is at")
        if prometheus is not None:
            prometheus.scrape(ports["http"])
        terminal.until(WHY)
        yield DyingDemo(terminal, ports["http"], ports["dashboard"])
        terminal.type("\x03")
        assert terminal.end() == 0, terminal.raw
        what, why, ended = terminal.last[-3:]
        assert what.startswith("The engine died")
        assert why.startswith("Why: ")
        assert ended == "Ended; nothing is left running."
    finally:
        terminal.kill()
        until(lambda: children_left(folder) == [], why=lambda: children_left(folder))


@pytest.fixture(scope="session")
def living_demo(metrics_ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A demo whose engine the guard heals, so that its workload repeats: there is always something new, and always something
    wrong."""
    folder = tmp_path_factory.mktemp("living")
    run = _run("living_demo", demo(folder, *BUG, "--guard", "heal", metrics_port=metrics_ports["living"]))
    run.wait_for_output("The workload repeats gently until Ctrl-C.")
    # The second round finds what the first has stored: only then is there something to load.
    until(lambda: run.get("/api/totals")["loaded"] > 0)
    return run


@pytest.fixture(scope="session")
def loading_engine(metrics_ports: dict[str, int], ending: Tracer, tmp_path_factory: pytest.TempPathFactory) -> Loading:
    """A scheduler with asynchronous loads; those of the demos are not."""
    from watching import loading

    folder = tmp_path_factory.mktemp("loading")
    return _run("loading_engine", loading(folder, ending.grpc_port, metrics_ports["loading"]))


@dataclass(frozen=True)
class Story:
    """All of it."""

    watch: Watching
    ended: dict[str, str]
    ending: Tracer
    dying: DyingDemo
    living: Demo
    loading: Loading

    @property
    def engines(self) -> dict[str, str]:
        """The ids of the demos' engines."""
        return {"dying": only_engine(self.dying), "living": only_engine(self.living)}


def only_engine(servers: Servers) -> str:
    """The id of a demo's engine."""
    (engine,) = servers.get("/api/fleet")["engines"]
    return str(engine["engine"])


@pytest.fixture(scope="session")
def story(
    watch: Watching,
    ended_engines: dict[str, str],
    ending: Tracer,
    dying_demo: DyingDemo,
    living_demo: Demo,
    loading_engine: Loading,
) -> Story:
    """All of it, once Prometheus has seen the counters that only asynchronous loads move."""
    if watch.prometheus is not None:
        watch.prometheus.scrape(living_demo.http_port)
    for _ in range(4):
        loading_engine.serve()
    if (prometheus := watch.prometheus) is not None:
        until(lambda: prometheus.has_seen(loading_engine))
    return Story(watch, ended_engines, ending, dying_demo, living_demo, loading_engine)


@pytest.fixture
def prometheus(watch: Watching) -> Prometheus:
    if watch.prometheus is None:
        pytest.skip("not installed: apt-get install prometheus prometheus-alertmanager")
    return watch.prometheus
