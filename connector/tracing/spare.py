"""Measures the time in which the scheduler had spare capacity to run one more request. Deadline rules count only this time:
on a busy engine, requests wait until capacity is free.

vLLM does not pass its scheduler to connectors. It is found once, as the caller that passes its KV cache manager, and only
read.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

LONGEST_NS = 5 * 10**9
"""Maximum counted time between two steps: a scheduler without steps admits no requests."""
FRAMES = 16
"""Maximum call depth between the scheduler and its connector: a MultiConnector passes calls on."""


class SpareCapacity:
    """Observes one scheduler, step by step.

    Attributes:
        total_ns: total time with spare capacity.
        has_spare: whether it had spare capacity after its last step.
    """

    def __init__(self, scheduler: Any) -> None:
        """
        Raises:
            AttributeError: this vLLM's scheduler has another structure.
        """
        self.total_ns = 0
        self._scheduler = weakref.ref(scheduler)
        self._slots = getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs)
        self._tokens = scheduler.max_num_scheduled_tokens
        self._pool = scheduler.kv_cache_manager.block_pool
        self._block_size, self._groups = scheduler.block_size, len(scheduler.kv_cache_config.kv_cache_groups)
        self._waiting = [
            queue
            for name in ("waiting", "skipped_waiting", "kv_holding_waiting")
            if (queue := getattr(scheduler, name, None)) is not None
        ]
        config = scheduler.scheduler_config
        self._shares_steps = config.enable_chunked_prefill and scheduler.lora_config is None
        """Whether a request can use any remaining capacity: a prompt that must run in one step, or needs an adapter's slot,
        may have to wait for running requests."""
        self.has_spare = False
        self._at_ns = 0
        self._output: Any = None

    @property
    def is_paused(self) -> bool | None:
        """Whether the scheduler is paused; None if vLLM cannot pause it."""
        state = getattr(self._scheduler(), "pause_state", None)
        return None if state is None else bool(state)

    @property
    def running(self) -> int | None:
        """The number of running requests, also within a step; None after the scheduler was deleted."""
        scheduler = self._scheduler()
        return None if scheduler is None else len(scheduler.running)

    def step(self, output: Any, at_ns: int) -> None:
        """Called after a step was scheduled, possibly by several connectors."""
        if output is self._output:
            return
        if self.has_spare:
            self.total_ns += min(at_ns - self._at_ns, LONGEST_NS)
        self._output, self._at_ns = output, at_ns
        scheduler = self._scheduler()
        self.has_spare = (
            scheduler is not None
            and len(scheduler.running) < self._slots
            and not output.preempted_req_ids
            and (self._has_room(output.total_num_scheduled_tokens) if scheduler.running else self._is_idle(scheduler))
            and not self.is_paused
        )

    def _has_room(self, scheduled: int) -> bool:
        """Whether the step has tokens left, and the pool blocks for the longest waiting request. Loading requests may have
        blocks reserved for the rest of their prompts."""
        if not self._shares_steps or 2 * scheduled > self._tokens:
            return False
        lengths = [request.num_tokens for queue in self._waiting for request in queue]
        if not lengths:
            return True
        needed = (sum(lengths) // self._block_size + len(lengths)) * self._groups
        return bool(self._pool.get_num_free_blocks() >= needed)

    def _is_idle(self, scheduler: Any) -> bool:
        """Whether no request runs, loads, or holds blocks after its end."""
        received = scheduler.finished_recving_kv_req_ids
        return not any(
            request.is_finished()
            or (request.status.name == "WAITING_FOR_REMOTE_KVS" and request.request_id not in received)
            for request in scheduler.requests.values()
        )


def spare_capacity(pool: Any) -> SpareCapacity | None:
    """An observer of the scheduler with this block pool, which is found in the call stack; None if there is none, or if it
    has an unknown structure."""
    frame = sys._getframe(1)
    for _ in range(FRAMES):
        caller = frame.f_locals.get("self")
        if hasattr(caller, "schedule") and getattr(getattr(caller, "kv_cache_manager", None), "block_pool", 0) is pool:
            try:
                return SpareCapacity(caller)
            except AttributeError:
                return None
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
