"""Puts an in-memory engine where vLLM's MooncakeConnector looks for the `mooncake` package, so that engines in one process
hand over to each other: the bytes move between their memories, the messages by ZeroMQ and HTTP on this machine, as ever.

Known: vLLM 0.32.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector"
HOST = "127.0.0.1"
OTHER_ERROR = -1
"""What a write returns that fails."""


class TransferEngines:
    """The memory of all engines.

    Attributes:
        failing: writes that are to fail from now on, before any of their bytes move.
        writes: how many there were.
    """

    def __init__(self) -> None:
        self.failing = self.writes = 0
        self._registered: dict[str, list[tuple[int, int]]] = {}

    def engine(self) -> TransferEngine:
        """In place of `mooncake.engine.TransferEngine`."""
        engine = TransferEngine(self, len(self._registered) + 1)
        self._registered[engine.session] = []
        return engine

    def register(self, session: str, start: int, length: int) -> None:
        self._registered[session].append((start, start + length))

    def holds(self, session: str, start: int, length: int) -> bool:
        return any(first <= start and start + length <= last for first, last in self._registered.get(session, ()))


class TransferEngine:
    """One worker's end, with the methods that vLLM calls."""

    def __init__(self, engines: TransferEngines, port: int) -> None:
        self._engines, self._port = engines, port
        self.session = f"{HOST}:{port}"

    def initialize(self, host: str, metadata: str, protocol: str, device: str) -> int:
        return 0

    def get_rpc_port(self) -> int:
        return self._port

    def batch_register_memory(self, starts: Sequence[int], lengths: Sequence[int]) -> int:
        for start, length in zip(starts, lengths, strict=True):
            self._engines.register(self.session, start, length)
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
    ) -> int:
        self._engines.writes += 1
        if self._engines.failing:
            self._engines.failing -= 1
            return OTHER_ERROR
        for source, target, length in zip(sources, targets, lengths, strict=True):
            if not (self._engines.holds(self.session, source, length) and self._engines.holds(session, target, length)):
                return OTHER_ERROR
            ctypes.memmove(target, source, length)
        return 0


@contextmanager
def installed(engines: TransferEngines) -> Iterator[None]:
    """Connectors that are made inside use these. One rank for each engine."""
    import torch

    module = importlib.import_module(MODULE)
    platform = type(module.current_platform)
    places: dict[str, Any] = {
        "TransferEngine": engines.engine,
        "get_ip": lambda: HOST,
        "get_tensor_model_parallel_rank": lambda: 0,
        "get_tensor_model_parallel_world_size": lambda: 1,
        "get_pp_group": lambda: SimpleNamespace(rank_in_group=0),
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(module, **places))
        stack.enter_context(mock.patch.object(torch.accelerator, "current_device_index", return_value=0))
        stack.enter_context(mock.patch.object(platform, "set_device", create=True))
        yield
