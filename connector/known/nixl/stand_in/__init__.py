"""Replaces the `nixl` package, sockets, threads and clocks of vLLM's NIXL connectors by a network in memory, so that engines
in one process hand over to each other.

Known: vLLM 0.26 to 0.33. Older versions have other modules, or keep keys and values in separate blocks.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kvtrail.connector.known import nixl
from kvtrail.connector.known.nixl.stand_in.network import Agent, Network
from kvtrail.connector.known.nixl.stand_in.threads import SideChannel, threading

_NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
TIMED = ("base_scheduler", "base_worker", "pull_scheduler", "pull_worker", "push_scheduler", "push_worker")
"""vLLM's modules with the clocks of leases."""


class Clock:
    """A clock, in seconds, that only changes when `now_s` is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def can_be_installed() -> bool:
    """Whether this vLLM's NIXL connectors have the replaced modules, and support blocks that hold both keys and values."""
    from vllm.distributed.kv_transfer.kv_connector import utils

    has_modules = all(importlib.util.find_spec(f"{_NIXL}.{name}") for name in TIMED)
    return has_modules and not hasattr(utils.TransferTopology, "is_kv_layout_blocks_first")


@contextmanager
def installed(network: Network, clock: Clock) -> Iterator[None]:
    """A context in which new engines use this network and this clock, also after its end. A worker's rank is from the vLLM
    configuration that is current when the worker is created."""
    from vllm.config import get_current_vllm_config

    def parallel() -> Any:
        return get_current_vllm_config().parallel_config

    worker, scheduler, push = (
        importlib.import_module(f"{_NIXL}.{name}") for name in ("base_worker", "base_scheduler", "push_worker")
    )
    channel, cpus = SideChannel(network), type(worker.current_platform)
    places: dict[Any, dict[str, Any]] = {
        worker: {
            "NixlWrapper": lambda name, config: Agent(network, name),
            "nixl_agent_config": None,
            "zmq_ctx": channel.socket,
            "ThreadPoolExecutor": channel.executor,
            "get_tensor_model_parallel_rank": lambda: parallel().rank,
            "get_tensor_model_parallel_world_size": lambda: parallel().tensor_parallel_size,
        },
        scheduler: {
            "zmq_ctx": channel.socket,
            "threading": SimpleNamespace(Thread=channel.thread, Event=scheduler.threading.Event),
        },
        push: {"threading": threading(network)},
        nixl: {"perf_counter": clock},
    }
    with ExitStack() as stack:
        for module, replaced in places.items():
            stack.enter_context(mock.patch.multiple(module, **replaced))
        for name in TIMED:
            time = SimpleNamespace(perf_counter=clock)
            stack.enter_context(mock.patch(f"{_NIXL}.{name}.time", time))
        # The worker would bind this process to one core.
        stack.enter_context(mock.patch.object(cpus, "discover_numa_topology", return_value=[], create=True))
        yield
