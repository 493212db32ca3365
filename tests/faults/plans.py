"""Wrong plans: what the scheduler's side has its workers copy. For the OffloadConnector."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from faults.fault import BLOCK_SIZE, Answer, Fault, ReportingProbe


class WrongResumeOffset(Fault):
    """RBLN #1009: a match below the connector's granularity moves the beginning after the lookup."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        loaded = {copy.request_id for copy in plan.loads}
        for new in output.scheduled_new_reqs:
            if new.req_id in loaded:
                new.num_computed_tokens += BLOCK_SIZE


class PlanBlocks(Fault):
    """vLLM #52170's kind: after a preemption the connector goes on with the block table from before it."""

    def prepare(self) -> None:
        self._first_tables: dict[str, list[int]] = {}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._first_tables.setdefault(request.request_id, list(blocks.get_block_ids()[0]))
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def alter_plan(self, plan: Any, output: Any) -> None:
        for number, copy in enumerate(plan.stores):
            first = copy.start // BLOCK_SIZE
            stale = tuple(self._first_tables[copy.request_id][first : first + len(copy.blocks)])
            plan.stores[number] = replace(copy, blocks=stale + copy.blocks[len(stale) :])


class StaleBlock(Fault):
    """vLLM #42959: a store of a window's blocks comes late, and by then they are another request's. For the
    OffloadingConnector, with two groups."""

    rule = "plan-blocks"

    def alter_plan(self, plan: Any, output: Any) -> None:
        requests = self.connector_scheduler._req_status  # type: ignore[attr-defined]  # of the OffloadingConnector
        for job in plan.store_jobs.values():
            spec, own = job.src_spec, requests[job.req_id].group_states[-1].block_ids
            others = [state for name, state in requests.items() if name != job.req_id]
            theirs = {block for state in others for group in state.group_states for block in group.block_ids[-3:]}
            left = [block for block in own[:-8] if block and block in theirs]
            if left and spec.group_sizes[-1]:
                spec.block_ids[-1] = left[0]


class LoadRange(Fault):
    """A load reaches a block further than was allocated for it."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        if plan.loads:
            plan.loads[-1] = _a_block_further(plan.loads[-1], output)


class UnselectedLoad(Fault):
    """LMCache #4355: the load is planned with what the lookup had answered, though 0 tokens were allocated."""

    rule = "load-range"

    def prepare(self) -> None:
        self._answers: dict[str, int] = {}

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        self._answers[request.request_id] = returned or 0
        return returned, is_async

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, self._answers[request.request_id])


class StoreGap(Fault):
    """The first chunk of a request is never stored, and the cursor moves on."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        plan.stores[:] = [copy for copy in plan.stores if copy.start]


class StoreShort(Fault):
    """vLLM #53498: a request's first chunk is stored, and the rest never."""

    rule = "store-gap"

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copies in (plan.stores, plan.present):
            copies[:] = [copy for copy in copies if not copy.start]


class UnreportedBlocks(Fault):
    """dynamo #8490: blocks that a running request needs are taken, and the connector is not notified."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        running = output.scheduled_cached_reqs
        running.new_block_ids = [None] * len(running.new_block_ids)


class RetriedLookup(Fault):
    """LMCache #4508: every lookup with a hit moves the store's watermark by the hit."""

    def prepare(self) -> None:
        self._watermarks: Counter[str] = Counter()

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        self._watermarks[request.request_id] += self.last_matched if returned else 0
        return returned, is_async

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copies in (plan.stores, plan.present):
            copies[:] = [copy for copy in copies if copy.start >= self._watermarks[copy.request_id]]


class StoreUncomputed(Fault):
    """A store reaches a block further than the step computes."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        plan.stores[:] = [_a_block_further(copy, output) for copy in plan.stores]


class EvictedHit(Fault):
    """vLLM #42289: a chunk is evicted between the lookup that found it and the load."""

    rule = "evicted-in-use"

    kvtrail_probe = ReportingProbe

    def prepare(self) -> None:
        self._matched: list[str] = []

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        self._matched += self._scheduler.last_keys()[:1]
        return returned, is_async

    def take_evicted(self) -> list[tuple[str, int, int, str | None]]:
        matched, self._matched = self._matched, []
        return super().take_evicted() + [(key, self.chunk_size, 0, None) for key in matched]


class SelfEviction(Fault):
    """pegaflow #396: the first chunk of a prompt counts as used longest ago, and makes room for a later one."""

    kvtrail_probe = ReportingProbe

    def prepare(self) -> None:
        self._first: dict[str, str] = {}
        self._pushed_out: list[tuple[str, int, int, str | None]] = []

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copy in plan.stores:
            if not copy.start:
                self._first[copy.request_id] = copy.key
            elif (key := self._first.pop(copy.request_id, None)) is not None:
                self._pushed_out.append((key, self.chunk_size, 0, copy.request_id))

    def take_evicted(self) -> list[tuple[str, int, int, str | None]]:
        pushed_out, self._pushed_out = self._pushed_out, []
        return super().take_evicted() + pushed_out


class StateBoundary(Fault):
    """LMCache #5004's kind: a recurrent state is stored as that of the place before it. For the OffloadingConnector, with a
    recurrent KV cache group."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        for job in plan.store_jobs.values():
            spec = job.src_spec
            *others, state = spec.block_indices
            if state and spec.group_sizes[-1]:
                spec.block_indices = type(spec.block_indices)([*others, state - 1])


class StoreUnderLoad(Fault):
    """vLLM #35092: blocks that a load is about to fill are stored. For the OffloadingConnector."""

    rule = "read-before-loaded"

    _number = 10**6

    def alter_plan(self, plan: Any, output: Any) -> None:
        for job in list(plan.load_jobs.values())[:1]:
            self._number += 1
            plan.store_jobs[self._number] = type(job)(req_id=job.req_id, src_spec=job.dst_spec, dst_spec=job.src_spec)


def _a_block_further(copy: Any, output: Any) -> Any:
    """A copy that reaches into the request's next block, if it has one."""
    table = output.kv_connector_block_state.get_block_ids(copy.request_id)[0]
    end = (copy.start + copy.count) // BLOCK_SIZE
    return replace(copy, count=copy.count + BLOCK_SIZE, blocks=(*copy.blocks, *table[end : end + 1]))
