"""Wrong handling of transfers, blocks and the workers' reports."""

from __future__ import annotations

import threading
from typing import Any

from faults.fault import BLOCK_SIZE, Answer, Fault
from kvtrail.tracer.events.capabilities import Capability


class BlockReuse(Fault):
    """vLLM #52360: stores that are under way are not waited for when their blocks are given to others. For the
    OffloadingConnector."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        plan.jobs_to_flush = set()


class LoadStoreOverlap(Fault):
    """vLLM #46014: a load is issued for a request before its store has ended. For the OffloadingConnector."""

    _number = 10**6

    def alter_plan(self, plan: Any, output: Any) -> None:
        for job in list(plan.store_jobs.values())[:1]:
            self._number += 1
            forged = type(job)(req_id=job.req_id, src_spec=job.dst_spec, dst_spec=job.src_spec)
            plan.load_jobs[self._number] = forged


class StrayCompletion(Fault):
    """vLLM #51595: two report the same load as finished."""

    _again: frozenset[str] = frozenset()

    def alter_report(self, report: Any) -> None:
        again, self._again = self._again, frozenset(report.finished_recving or ())
        if again:
            report.finished_recving = set(again) | (report.finished_recving or set())


class StuckLoad(Fault):
    """A finished load is never reported."""

    def alter_report(self, report: Any) -> None:
        report.finished_recving = None


class SecondLoad(Fault):
    """vLLM #18631's kind: the tokens of a received load are not remembered, and the connector offers them once more. For the
    OffloadingConnector."""

    rule = "duplicate-load"

    def prepare(self) -> None:
        self._loading: dict[str, Any] = {}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._loading[request.request_id] = request

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        for request_id in connector_output.finished_recving or ():
            self._loading[request_id].num_computed_tokens = 0


class CallersGaveUp(StuckLoad):
    """SGLang #28651's kind: no load is ever reported, and each caller gives up before it has waited for long."""

    rule = "stalled-connector"


class StalledTransfers(Fault):
    """vLLM #46019's kind: the thread that copies dies of an exception after some copies, and none ends any more. For the
    OffloadingConnector."""

    rule = "stalled-connector"

    _lives_for = 3
    """Copies that it still makes."""

    def alter_report(self, report: Any) -> None:
        meta = report.kv_connector_worker_meta
        if meta is not None and self._lives_for > 0:
            self._lives_for -= len(meta.completed_jobs)
        else:
            report.kv_connector_worker_meta = report.finished_recving = report.finished_sending = None


class UnloadedHit(Fault):
    """bytedance-iaas/sglang #768: blocks are hits as soon as a load into them begins. For the OffloadingConnector."""

    rule = "read-before-loaded"

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            loaded = len(blocks.get_block_ids()[0]) * BLOCK_SIZE
            self._kv_cache_manager.cache_blocks(request, loaded)  # type: ignore[union-attr]  # bound before


class StuckPromotion(Fault):
    """vLLM #27074's kind: the loaded request needs one more block, and all others are held by nobody who will run."""

    rule = "never-scheduled"

    def alter_report(self, report: Any) -> None:
        if report.finished_recving:
            pool = self._kv_cache_manager.block_pool  # type: ignore[union-attr]  # bound before the first step
            pool.get_new_blocks(pool.get_num_free_blocks())


class LateFree(Fault):
    """The blocks of a finished request are kept for a reader that never comes."""

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        super().request_finished_all_groups(request, block_ids)
        return True, None

    def alter_report(self, report: Any) -> None:
        report.finished_sending = None


class FailedLoadResume(Fault):
    """A load error is reported after the scheduler has looked for errors: it runs on. For the OffloadConnector."""

    rule = "failed-load-used"

    def prepare(self) -> None:
        self._loaded: set[int] = set()

    def alter_plan(self, plan: Any, output: Any) -> None:
        self._loaded = {copy.blocks[0] for copy in plan.loads}

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        connector_output.invalid_block_ids = self._loaded


class StoreFailedLoad(FailedLoadResume):
    """vllm-ascend #16876: what could not be loaded is stored in the next step. For the OffloadConnector."""

    rule = "failed-load-used"

    def prepare(self) -> None:
        super().prepare()
        self._last_loads: list[Any] = []

    def alter_plan(self, plan: Any, output: Any) -> None:
        super().alter_plan(plan, output)
        plan.stores += self._last_loads
        self._last_loads = list(plan.loads)


class FailedLoadHit(Fault):
    """vllm-ascend #16875's kind: a load within a step fails, and what the step stores for its request is kept. For the
    OffloadConnector."""

    rule = "failed-load-used"

    def prepare(self) -> None:
        self._failed: set[int] | None = None
        """The last block of the first load, from the step on that loads it."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        if plan.loads and self._failed is None:
            self._failed = {plan.loads[0].blocks[-1]}

    def alter_report(self, report: Any) -> None:
        if self._failed:
            report.invalid_block_ids, self._failed = self._failed, set()

    def update_connector_output(self, connector_output: Any) -> None:
        failed, connector_output.invalid_block_ids = connector_output.invalid_block_ids, set()
        super().update_connector_output(connector_output)
        connector_output.invalid_block_ids = failed


class PollStarvation(LateFree):
    """vLLM #46502: the blocks of a finished request are kept, and then no step comes in which that could end."""


class StuckStep(Fault):
    """LMCache #4759's kind: once a request runs, the connector waits inside a step for an answer that never comes."""

    waits = threading.Event()
    """Set once it waits."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        if output.scheduled_cached_reqs.req_ids:
            self.waits.set()
            threading.Event().wait()


class UnreadLoad(Fault):
    """SGLang #39846's kind: a load is reported as received once its first read is posted. For NIXL's connector."""

    rule = "incomplete-load"

    def prepare(self) -> None:
        self._early: set[str] = set()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = super().get_transfer_results(finished_req_ids)
        posted = set(self.connector_worker._recving_transfers)  # type: ignore[attr-defined]  # NIXL's
        ended = self._early & results.finished_recving
        results.finished_recving = (results.finished_recving | posted) - self._early
        self._early = (self._early | posted) - ended
        return results


class NeverAdmitted(Fault):
    """vLLM #42371's kind: the pool's blocks are held by nobody who will give them back."""

    rule = "never-scheduled"

    def alter_plan(self, plan: Any, output: Any) -> None:
        pool = self._kv_cache_manager.block_pool  # type: ignore[union-attr]  # bound before the first step
        pool.get_new_blocks(pool.get_num_free_blocks())


class RefusedHandoff(Fault):
    """vLLM #46008: a request that was to be handed on is let go like any other."""

    kvtrail_capabilities = (Capability.HANDS_ON,)


class IdlePreemption(Fault):
    """vLLM #49674: the blocks of a preempted request are fenced, and the next one is preempted instead."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._kv_cache_manager.block_pool.touch(blocks.blocks[0])  # type: ignore[union-attr]  # bound before


class EarlyDrafts(Fault):
    """vLLM #30618: drafts are kept for a request before its prompt is computed. With speculative tokens."""

    def prepare(self) -> None:
        self._asked: list[Any] = []

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        self._asked.append(request)
        return returned, is_async

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        for request in self._asked:
            request.is_prefill_chunk = False


class NullBlock(Fault):
    """vLLM #46453's kind: the longest of the KV cache groups' hits is taken, and a window has no blocks there. For the
    OffloadingConnector, with several groups."""

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        coordinator, null = kv_cache_manager.coordinator, kv_cache_manager.block_pool.null_block
        find = coordinator.find_longest_cache_hit

        def find_without_window(*given: Any, **named: Any) -> Any:
            (*others, window), *rest = find(*given, **named)
            return ((*others, [null] * len(window)), *rest)

        coordinator.find_longest_cache_hit = find_without_window
