"""Schedules a worker's copies: within the step, or concurrently with the steps.

Why concurrent copies are right. They run one after the other, in the order of the calls, so each sees the results of earlier
copies in host memory. A copy starts after all earlier operations of the engine, so it
reads the results of the forward pass, and writes into blocks that are no longer read. A request uses loaded blocks
only after the load was reported. Before a write into blocks that vLLM has allocated to another request, all
stores that read them have ended, even if the old holder has ended, was preempted, or has a window that has passed
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import cuda

from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.offload.plan import Copy

logger = logging.getLogger("vllm.kvtrail")
Ticket = Any
"""A submitted copy, with the interface of a future: `done` says whether it has ended; `result` returns when the engine's next
operations will run after it, and raises if it failed."""


class InStep:
    """The caller's thread, for a cache in the CPU's memory. A copy has ended when the call returns."""

    def submit(self, copy: Callable[[], None]) -> Ticket:
        """Run a copy after all earlier copies and all earlier operations of the engine."""
        copy()
        return _ended()

    def shutdown(self) -> None:
        """Note that there will be no more copies."""


CopyThread = partial(ThreadPoolExecutor, 1, thread_name_prefix="offload")
"""A separate thread, for a cache in the CPU's memory, where the engine's operations are synchronous."""


class CopyStream:
    """A separate CUDA stream, for a cache on a GPU. The CPU does not wait: streams wait for each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = cuda.Stream(device)

    def submit(self, copy: Callable[[], None]) -> Ticket:
        self._stream.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(self._stream):
            copy()
        return _Recorded(self._stream.record_event(), self._device)

    def shutdown(self) -> None:
        self._stream.synchronize()


class _Recorded(NamedTuple):
    """The copies on a stream up to an event."""

    event: Any
    device: torch.device

    def done(self) -> bool:
        return bool(self.event.query())

    def result(self) -> None:
        cuda.current_stream(self.device).wait_event(self.event)


def _ended(error: Exception | None = None) -> Ticket:
    """A copy that has ended, or could not start."""
    ended: Future[None] = Future()
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
    return ended


class _Running(NamedTuple):
    """A concurrent copy, and its blocks."""

    ticket: Ticket
    blocks: frozenset[int]


class Transfers:
    """The copies of one worker."""

    def __init__(self, memory: HostMemory, *, beside: bool) -> None:
        """`memory` has its KV caches. `beside`: copies run concurrently with the steps."""
        self._memory, self._beside = memory, beside
        self._queue: Any
        if memory.device.type == "cuda":
            self._queue = CopyStream(memory.device)
        else:
            self._queue = CopyThread() if beside else InStep()
        self._stores: list[_Running] = []
        self._loads: dict[str, _Running] = {}
        """Loads that are not reported yet, by request."""
        self._failed: set[int] = set()

    def load(self, copies: Sequence[Copy]) -> None:
        """Run loads: within the step, before the engine's next operation; or concurrently, one request at a time."""
        for request_id, some in groupby(copies, lambda copy: copy.request_id):
            mine = list(some)
            try:
                ticket = self._queue.submit(partial(self._memory.load, mine))
            except Exception as error:
                ticket = _ended(error)
            self._loads[request_id] = _Running(ticket, _blocks(mine))
            if not self._beside:
                self._end_load(request_id)

    def store(self, copies: Sequence[Copy]) -> None:
        """Store copies: within the step, before the engine's next operation, or concurrently with the steps.

        Raises:
            Exception: it failed.
        """
        ticket = self._queue.submit(partial(self._memory.store, copies))
        if self._beside:
            self._stores.append(_Running(ticket, _blocks(copies)))
        else:
            ticket.result()

    def wait_for_blocks(self, given: Set[int]) -> None:
        """Make the engine's next operation wait for the stores that read these blocks.

        Raises:
            Exception: a store has failed, so the contents of host memory are unknown.
        """
        running, self._stores = self._stores, []
        for store in running:
            if store.ticket.done() or not given.isdisjoint(store.blocks):
                store.ticket.result()
            else:
                self._stores.append(store)

    def take_loaded(self) -> set[str]:
        """The requests of concurrent loads that have ended since the last call, including failed ones."""
        ended = {request_id for request_id, load in self._loads.items() if load.ticket.done()}
        for request_id in ended:
            self._end_load(request_id)
        return ended

    def take_failed(self) -> set[int]:
        """The blocks of loads that have failed since the last call."""
        failed, self._failed = self._failed, set()
        return failed

    def close(self) -> None:
        """Wait until all copies have ended."""
        self._queue.shutdown()

    def _end_load(self, request_id: str) -> None:
        load = self._loads.pop(request_id)
        try:
            load.ticket.result()
        except Exception:
            logger.exception("OffloadConnector: a load of request %s has failed", request_id)
            self._failed |= load.blocks


def _blocks(copies: Sequence[Copy]) -> frozenset[int]:
    return frozenset(block for copy in copies for block in copy.blocks)
