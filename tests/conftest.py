"""What all tests share: vLLM's settings, real tracers, and pages of a real Chromium."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import Tracer, serve

# vLLM's settings must stand before anything imports it.
from kvtrail.connector.simulate.tiny_model import prepare_environment

if TYPE_CHECKING:
    from playwright.sync_api import Page

prepare_environment()
# What a test records without saying where it goes must not end up in a tracer that somebody runs on this machine.
os.environ.setdefault("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several processes take the files that wait for engines and browsers first, so that none of them comes last, alone."""
    if hasattr(config, "workerinput"):
        first = ["tests/e2e", "tests/deploy", "tests/connector"]
        items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in first])


@pytest.fixture
def start_tracer(tmp_path: Path) -> Iterator[Callable[..., Tracer]]:
    """Starts real tracers; each is ended by its id when the test ends, however it ends."""
    started: list[Tracer] = []

    def start(*arguments: str, store: Path | None = None, grpc_port: int | None = None) -> Tracer:
        started.append(serve(tmp_path, *arguments, store=store, grpc_port=grpc_port))
        return started[-1]

    yield start
    for tracer in started:
        tracer.end()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    """One tracer for the tests of a module that do not mind each other's requests."""
    tracer = serve(tmp_path_factory.mktemp("tracer"))
    yield tracer
    tracer.end()


@pytest.fixture
def page() -> Iterator[Page]:
    """An empty page, for the tests next to `browser`."""
    from browser import CHROMIUM, FLAGS, SLOW_MS, playwright

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(SLOW_MS)
        yield page
        browser.close()
