"""Engines that tests of bytes build, one at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from checking import Engine, Tokens
from memory import MemoryTransport

from kvtrail.connector.recording import exporter
from kvtrail.connector.simulate import tiny_model


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Builds engines, one at a time: the next ends the one before. What they record goes nowhere."""
    patch = pytest.MonkeyPatch()
    engines: list[Any] = []

    def end() -> None:
        while engines:
            engines.pop().llm_engine.engine_core.shutdown()
        gc.collect()

    patch.setattr(exporter, "from_environment", lambda: exporter.InProcessExporter(MemoryTransport()))

    def build(
        kvtrail: dict[str, Any] | None = None,
        overrides: dict[str, Any] | None = None,
        name: str = "OffloadConnector",
        **extra: Any,
    ) -> Engine:
        end()
        connector = None
        if kvtrail is not None:
            connector = {
                "kv_connector": name,
                "kv_connector_module_path": "kvtrail.connector",
                "kv_connector_extra_config": {"kvtrail": kvtrail, **extra},
                "kv_load_failure_policy": "recompute",
            }
        llm = tiny_model.build(tmp_path_factory.mktemp("model"), connector, **(overrides or {}))
        engine = Engine(llm)
        engines.append(llm)
        if kvtrail is not None:
            engine.checks._results.report = engine.results.append
        return engine

    yield build
    end()
    patch.undo()


@pytest.fixture(scope="module")
def expected(built: Callable[..., Engine]) -> Tokens:
    """The tokens of an engine without any connector."""
    return built().round()
