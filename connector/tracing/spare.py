"""How long the scheduler has had spare capacity: the means to run one more request. Rules with a deadline count this
time alone, since a busy engine lets requests wait for as long as it is busy.

vLLM hands its scheduler to no connector. It is found once, as the one that hands over its KV cache manager, and only read.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

LONGEST_NS = 5 * 10**9
"""What counts at most of the time from one step to the next: a scheduler that makes no steps admits nobody."""
FRAMES = 16
"""Calls between the scheduler and its connector at most: a MultiConnector passes them on."""


class SpareCapacity:
    """Follows one scheduler, step by step.

    Attributes:
        total_ns: how long it has had the means to run one more request.
        has_spare: whether it had them after its last step.
    """

    def __init__(self, scheduler: Any) -> None:
        """
        Raises:
            AttributeError: this vLLM's scheduler is of another form.
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
        """Whether a request is admitted into any room that is left: a prompt that must run in one step, or needs an adapter's
        slot, may have to wait for those that run."""
        self.has_spare = False
        self._at_ns = 0
        self._output: Any = None

    @property
    def is_paused(self) -> bool | None:
        """Whether the scheduler is paused; None where vLLM cannot pause it."""
        state = getattr(self._scheduler(), "pause_state", None)
        return None if state is None else bool(state)

    @property
    def running(self) -> int | None:
        """How many requests run, inside a step, too; None once the scheduler is gone."""
        scheduler = self._scheduler()
        return None if scheduler is None else len(scheduler.running)

    def step(self, output: Any, at_ns: int) -> None:
        """After a step was scheduled, which several connectors may report."""
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
        """Whether tokens are left in the step, and blocks for the longest request that waits. Those that load may have blocks
        reserved for the rest of their prompts."""
        if not self._shares_steps or 2 * scheduled > self._tokens:
            return False
        lengths = [request.num_tokens for queue in self._waiting for request in queue]
        if not lengths:
            return True
        needed = (sum(lengths) // self._block_size + len(lengths)) * self._groups
        return bool(self._pool.get_num_free_blocks() >= needed)

    def _is_idle(self, scheduler: Any) -> bool:
        """Whether no request runs, loads, or holds blocks after its end, so that nothing is left to wait for."""
        received = scheduler.finished_recving_kv_req_ids
        return not any(
            request.is_finished()
            or (request.status.name == "WAITING_FOR_REMOTE_KVS" and request.request_id not in received)
            for request in scheduler.requests.values()
        )


def spare_capacity(pool: Any) -> SpareCapacity | None:
    """That of the scheduler with this block pool, in one of the calls that led here; None if there is none, or one of an
    unknown form."""
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
