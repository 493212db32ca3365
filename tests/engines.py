"""A pytest plugin: real engines in the process of the tests, one at a time. What they record goes nowhere."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from checking import Engine, Tokens
from memory import MemoryTransport

from kvtrail.connector.recording import exporter
from kvtrail.connector.simulate import tiny_model


class OneEngine:
    """The engine of this process: there is one at a time. It is kept for those that ask for the same one."""

    def __init__(self) -> None:
        self._settings: object = None
        self._llm: Any = None

    def get(self, settings: object, build: Callable[[], Any]) -> Any:
        """The `vllm.LLM` with these settings, or one that is built; that ends the one before."""
        if self._llm is None or settings != self._settings:
            import vllm_imported  # noqa: F401

            self.end()
            gc.freeze()  # so that `end` looks through this engine alone
            self._llm, self._settings = build(), settings
        return self._llm

    def end(self) -> None:
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
            gc.collect()
            gc.unfreeze()


class Engines:
    """Real engines with the tiny model, one at a time."""

    def __init__(self, one: OneEngine, folder: Path) -> None:
        self._one, self._folder = one, folder
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
        def build() -> Any:
            self._engine = None  # whoever refers to it keeps it in memory
            with patch.object(exporter, "from_environment", lambda: exporter.InProcessExporter(MemoryTransport())):
                return tiny_model.build(self._folder, connector, **overrides)

        llm = self._one.get((connector, overrides), build)
        if self._engine is None or self._engine.llm is not llm:
            self._engine = Engine(llm)
            self._engine.watch()
        return self._engine

    def end(self) -> None:
        """End the engine that there is."""
        self._engine = None
        self._one.end()


ONE = OneEngine()


@pytest.fixture(scope="module")
def one_engine() -> Iterator[OneEngine]:
    """The engine of this process, which ends with the module."""
    yield ONE
    ONE.end()


@pytest.fixture(scope="session")
def folder_of_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def engines(one_engine: OneEngine, folder_of_engines: Path) -> Engines:
    return Engines(one_engine, folder_of_engines)


@pytest.fixture(scope="session")
def expected(folder_of_engines: Path) -> Tokens:
    """What an engine without a connector generates for `JOBS`."""
    engines = Engines(ONE, folder_of_engines)
    first, second = (engines.plain().round() for _ in range(2))
    engines.end()
    assert first == second
    assert len({tuple(tokens) for tokens in first.values()}) > len(first) // 2, (
        "different prompts must give different tokens"
    )
    return first
