"""Wrong plans: what the scheduler's side tells its workers to copy. For the OffloadConnector."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

BLOCK_SIZE = 32
"""Tokens per KV block of the engines that faults are injected into."""


class Planner:
    """Changes the plan of each step."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        plan = super().build_connector_meta(scheduler_output)  # type: ignore[misc]
        self.spoil(plan, scheduler_output)
        return plan

    def spoil(self, plan: Any, output: Any) -> None:
        """Change `plan`, or the `SchedulerOutput` that it belongs to."""
        raise NotImplementedError


class ResumePoint(Planner):
    """RBLN #1009: a match below the connector's granularity moves the beginning after the lookup.

    https://github.com/RBLN-SW/vllm-rbln/pull/1009.
    """

    def spoil(self, plan: Any, output: Any) -> None:
        loaded = {copy.request_id for copy in plan.loads}
        for new in output.scheduled_new_reqs:
            if new.req_id in loaded:
                new.num_computed_tokens += BLOCK_SIZE


class PlanBlocks(Planner):
    """vLLM #52170's kind: after a preemption the connector goes on with the block table from before it.

    https://github.com/vllm-project/vllm/issues/52170.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        self._first_tables: dict[str, list[int]] = {}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._first_tables.setdefault(request.request_id, list(blocks.get_block_ids()[0]))
        super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]

    def spoil(self, plan: Any, output: Any) -> None:
        for number, copy in enumerate(plan.stores):
            first = copy.start // BLOCK_SIZE
            stale = tuple(self._first_tables[copy.request_id][first : first + len(copy.blocks)])
            plan.stores[number] = replace(copy, blocks=stale + copy.blocks[len(stale) :])


class UntoldBlocks(Planner):
    """dynamo #8490: blocks that a running request needs are taken, and the connector is not told.

    https://github.com/ai-dynamo/dynamo/pull/8490.
    """

    def spoil(self, plan: Any, output: Any) -> None:
        running = output.scheduled_cached_reqs
        running.new_block_ids = [None] * len(running.new_block_ids)


class LoadRange(Planner):
    """A load reaches a block further than was allocated for it."""

    def spoil(self, plan: Any, output: Any) -> None:
        if plan.loads:
            plan.loads[-1] = _a_block_further(plan.loads[-1], output)


class UnselectedLoad:
    """LMCache #4355: the load is planned with what the lookup had answered, though 0 tokens were allocated.

    https://github.com/LMCache/LMCache/pull/4355.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        self._answers: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        self._answers[request.request_id] = returned or 0
        return returned, is_async

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, self._answers[request.request_id])  # type: ignore[misc]


class StoreGap(Planner):
    """The first chunk of a request is never stored, and the cursor moves on."""

    def spoil(self, plan: Any, output: Any) -> None:
        plan.stores[:] = [copy for copy in plan.stores if copy.start]


class StoreShort(Planner):
    """vLLM #53498: a request's first chunk is stored, and the rest never.

    https://github.com/vllm-project/vllm/issues/53498.
    """

    def spoil(self, plan: Any, output: Any) -> None:
        for copies in (plan.stores, plan.present):
            copies[:] = [copy for copy in copies if not copy.start]


class RetriedLookup(Planner):
    """LMCache #4508: every lookup with a hit moves the store's watermark by the hit.

    https://github.com/LMCache/LMCache/issues/4508.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        self._watermarks: Counter[str] = Counter()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        self._watermarks[request.request_id] += self.last_matched if returned else 0  # type: ignore[attr-defined]
        return returned, is_async

    def spoil(self, plan: Any, output: Any) -> None:
        for copies in (plan.stores, plan.present):
            copies[:] = [copy for copy in copies if copy.start >= self._watermarks[copy.request_id]]


class StoreUncomputed(Planner):
    """A store reaches a block further than the step computes."""

    def spoil(self, plan: Any, output: Any) -> None:
        plan.stores[:] = [_a_block_further(copy, output) for copy in plan.stores]


class EvictedHit:
    """vLLM #42289: a chunk is evicted between the lookup that found it and the load.

    https://github.com/vllm-project/vllm/pull/42289.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        self.tells_more = True
        self._found: list[str] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(  # type: ignore[misc]
            request, num_computed_tokens
        )
        self._found += self.last_keys()[:1]  # type: ignore[attr-defined]
        return answer

    def take_evicted(self) -> list[tuple[str, int, int]]:
        evicted: list[tuple[str, int, int]] = super().take_evicted()  # type: ignore[misc]
        found, self._found = self._found, []
        return evicted + [(key, self.chunk_size, 0) for key in found]  # type: ignore[attr-defined]


def _a_block_further(copy: Any, output: Any) -> Any:
    """A copy that reaches into the request's next block, if it has one."""
    table = output.kv_connector_block_state.get_block_ids(copy.request_id)[0]
    end = (copy.start + copy.count) // BLOCK_SIZE
    return replace(copy, count=copy.count + BLOCK_SIZE, blocks=(*copy.blocks, *table[end : end + 1]))
