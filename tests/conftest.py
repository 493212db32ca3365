"""What tests share: vLLM's settings, real tracers and dashboards, and pages of a real Chromium."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from httpx._transports import default as httpx_transport
from memory import MemoryTransport
from processes import SLOW_S, SharedDashboard, Tracer, serve, shared_dashboard
from xdist.scheduler import LoadScopeScheduling

from kvtrail.connector.recording import exporter, recorder

# vLLM reads its settings when it is imported.
from kvtrail.connector.simulate.tiny_model import prepare_environment
from kvtrail.tracer.serve.limits import release_heap
from kvtrail.tracer.serve.receive import pipeline
from kvtrail.tracer.store import damage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from kvtrail.tracer.events.events import Event

prepare_environment()
# A shell that starts tests in the background has them ignore Ctrl-C, and so would the commands that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
pytest_plugins = ["once_a_session", "packages", "processor_time", "story", "watchdog"]
# An example may take as long as a slow machine needs. `make test` takes the same ones each time, `make test-all` new ones.
hypothesis.settings.register_profile("kvtrail", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("kvtrail")
# A test that does not say where its spans go must not send them to a tracer that somebody runs on this machine.
os.environ.setdefault("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
os.environ.setdefault("OTEL_LOGS_EXPORTER", "none")
# httpx reads all authorities for each `httpx.get`, which takes ten times as long as the rest of it.
setattr(httpx_transport, "create_ssl_context", functools.cache(vars(httpx_transport)["create_ssl_context"]))  # noqa: B010


SHARED = {
    "story": [
        "tests/deploy/test_deaths_page.py",
        "tests/deploy/test_watching.py",
        "tests/e2e/test_demo_of_a_death.py",
        "tests/e2e/test_live_demo.py",
    ],
    "packages": [
        "tests/deploy/test_supply.py",
        "tests/e2e/test_wheel.py",
    ],
    "engines": [
        "tests/connector/fingerprints/test_block_checks.py",
        "tests/connector/fingerprints/test_some_bytes_on_engines.py",
        "tests/connector/tracing/test_engine.py",
    ],
    "lmcache": [
        "tests/e2e/test_lmcache.py",
        "tests/e2e/test_lmcache_causes.py",
        "tests/e2e/test_lmcache_server.py",
        "tests/e2e/test_redrive_lmcache.py",
    ],
}
"""Files whose tests share something expensive, so that they run in one process, by what they share."""


class ByWhatIsShared(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """The tests of a file run in one process, and so do those of the files that `SHARED` lists together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((shared for shared, files in SHARED.items() if file in files), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWhatIsShared:
    return ByWhatIsShared(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several processes take the files that wait for engines and browsers first, so that none of them comes last, alone."""
    if hasattr(config, "workerinput"):
        first = ["tests/e2e", "tests/deploy", "tests/connector"]
        items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in first])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What fails is said at once: a run that is ended from outside prints no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        why = report.longreprtext.splitlines()[-1:]
        print(f"\n{time.strftime('%H:%M:%S')} FAILED {report.nodeid} ({report.when}): {''.join(why)}", flush=True)


GROWTH_BYTES = 300 * 2**20
"""Resident memory that this process may gain from one collection of garbage to the next."""
_collected_at: list[int] = []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Engines end as cycles of objects with large tensors, and Python looks for cycles by the number of objects alone:
    without this a process takes 3 GiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    if not _collected_at:
        _collected_at.append(resident)
    if resident > _collected_at[0] + GROWTH_BYTES:
        gc.collect()
        release_heap()
        _collected_at.clear()


@pytest.fixture(autouse=True)
def whole_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test damages is no damage of the next one's store."""
    monkeypatch.setattr(damage, "_met", {})


@pytest.fixture
def forgets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that is tidied forgets what has ended until then."""
    monkeypatch.setattr(pipeline, "FORGET_FINISHED_NS", 0)


@pytest.fixture
def start_tracer(tmp_path: Path) -> Iterator[Callable[..., Tracer]]:
    """Starts real tracers, and ends each of them with the test, however that ends."""
    started: list[Tracer] = []

    def start(*arguments: str, **settings: Any) -> Tracer:
        started.append(serve(tmp_path, *arguments, **settings))
        return started[-1]

    yield start
    for tracer in started:
        tracer.kill()  # it would take most of a second to end on its own, and no test looks at it any more


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDashboard]:
    """One dashboard for all tests of this process that do not need one with other options."""
    with shared_dashboard(tmp_path_factory.mktemp("dashboard")) as pages:
        yield pages


@pytest.fixture
def shown(pages: SharedDashboard, tmp_path: Path) -> Iterator[Tracer]:
    """A tracer with an empty store, which the shared dashboard shows."""
    with pages.showing(tmp_path) as tracer:
        yield tracer


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    """One tracer for those tests of a module that do not mind each other's requests."""
    tracer = serve(tmp_path_factory.mktemp("tracer"))
    yield tracer
    tracer.kill()


_of_playwright: list[asyncio.AbstractEventLoop] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The event loop of playwright runs between its calls. Only tests with a browser may see it: others run their own."""
    needs_it = "chromium" in getattr(item, "fixturenames", ())
    asyncio._set_running_loop(_of_playwright[0] if needs_it and _of_playwright else None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A Chromium for all tests of this process."""
    from browser import CHROMIUM, FLAGS, playwright

    with playwright.sync_playwright() as driver:
        _of_playwright.append(asyncio.get_running_loop())
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        asyncio._set_running_loop(_of_playwright.pop())
        browser.close()
    asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def browsing(chromium: Browser) -> Iterator[BrowserContext]:
    """What all pages share: the browser's cache. Without it each page compiles Streamlit's scripts again."""
    from browser import SLOW_MS

    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(SLOW_MS)
    context.new_page()  # stays open, so that the pages of the tests are tabs of its window: a window takes longer than a page
    yield context
    asyncio._set_running_loop(_of_playwright[0])
    context.close()


@pytest.fixture
def page(browsing: BrowserContext) -> Iterator[Page]:
    """An empty page that knows nothing of those before it, for the tests next to `browser`."""
    stays = browsing.pages
    page = browsing.new_page()
    page.add_init_script(
        f"""const test = {json.dumps(str(uuid.uuid4()))};
        if (location.protocol.startsWith("http") && localStorage.getItem("test") !== test) {{
            localStorage.clear();
            localStorage.setItem("test", test);
        }}"""
    )
    yield page
    for each in browsing.pages:
        if each not in stays:
            each.close()
    browsing.clear_cookies()
    browsing.clear_permissions()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Event]]]:
    """What the recorders of this test have sent."""
    for each in recorder.recorders():  # of earlier tests, which sent unread events to a tracer that was not there
        each.close(0)
    recorder._recorders.clear()
    memory = MemoryTransport()
    monkeypatch.setattr(exporter, "from_environment", lambda: exporter.InProcessExporter(memory))

    def read() -> list[Event]:
        for each in recorder.recorders():
            assert each.flush(SLOW_S)
            assert each.dropped == 0
        return memory.events()

    yield read
    for each in recorder.recorders():
        each.close(SLOW_S)
    recorder._recorders.clear()
