"""A pytest plugin: real engines in the process of the tests, one at a time. What they record goes nowhere."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from checking import Engine, Tokens
from memory import MemoryTransport

from kvtrail.connector.recording import exporter
from kvtrail.connector.simulate import tiny_model


class Engines:
    """Builds engines, one at a time: the next ends the one before. It keeps an engine that it is asked for again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings: Any = None
        self._engine: Engine | None = None

    def plain(self, **overrides: Any) -> Engine:
        """An engine without a connector."""
        return self._built(None, overrides)

    def offload(
        self,
        kvtrail: dict[str, Any] | None = None,
        overrides: dict[str, Any] | None = None,
        name: str = "OffloadConnector",
        **extra: Any,
    ) -> Engine:
        """An engine with an OffloadConnector, or what is made of it.

        Args:
            kvtrail: kvtrail's settings.
            overrides: vLLM's engine arguments.
            extra: the connector's settings.
        """
        connector = {
            "kv_connector": name,
            "kv_connector_module_path": "kvtrail.connector",
            "kv_connector_extra_config": {**({} if kvtrail is None else {"kvtrail": kvtrail}), **extra},
            "kv_load_failure_policy": "recompute",
        }
        return self._built(connector, overrides or {})

    def _built(self, connector: dict[str, Any] | None, overrides: dict[str, Any]) -> Engine:
        settings = connector, overrides
        if self._engine is None or settings != self._settings:
            self.end()
            gc.freeze()  # so that `end` looks through this engine alone
            with patch.object(exporter, "from_environment", lambda: exporter.InProcessExporter(MemoryTransport())):
                self._engine = Engine(tiny_model.build(self._folder, connector, **overrides))
            self._settings = settings
            self._engine.watch()
        return self._engine

    def end(self) -> None:
        """End the engine that is there."""
        if self._engine is not None:
            self._engine.llm.llm_engine.engine_core.shutdown()
            self._engine = None
            gc.collect()
            gc.unfreeze()


@pytest.fixture(scope="session")
def one_engine(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    import vllm_imported  # noqa: F401

    return Engines(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engines(one_engine: Engines) -> Iterator[Engines]:
    """The engines of this process, of which none outlives the module."""
    yield one_engine
    one_engine.end()


@pytest.fixture(scope="session")
def expected(one_engine: Engines) -> Tokens:
    """What an engine without a connector generates for `JOBS`."""
    first, second = (one_engine.plain().round() for _ in range(2))
    one_engine.end()
    assert first == second
    assert len({tuple(tokens) for tokens in first.values()}) > len(first) // 2, (
        "different prompts must give different tokens"
    )
    return first
