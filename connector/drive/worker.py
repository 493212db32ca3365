"""The workers of a bare scheduler, made up: transfers that end early, late, out of order, or with errors.

Nothing is copied. What is real is the conversation: each load that a request waits for ends once, each numbered job of vLLM's
OffloadingConnector at the latest when it is to be flushed, blocks that a connector keeps after a request's end are given
back, and the report goes to the scheduler in vLLM's own form.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from connector.drive.scenario import Workers


class MadeUpWorker:
    """One worker. Call it with each `SchedulerOutput`; it answers with the report of that step."""

    def __init__(self, scheduler: Any, workers: Workers, *, block_size: int) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._rng = random.Random(workers.seed)
        self._jobs: dict[int, tuple[int, str | None]] = {}
        """Numbered jobs: the step in which each ends, and the request that waits for it, if it is a load."""
        self._waits: dict[str, int] = {}
        """Requests that wait for a load or for their blocks' return, and the step in which that ends."""
        self._loads: dict[str, Sequence[int]] = {}
        """The blocks into which each request's latest load goes."""
        self._step = 0
        if workers.load_failures:
            self._listen(scheduler.connector, block_size)

    def __call__(self, output: Any) -> Any:
        """The workers' report after a step: a `KVConnectorOutput`."""
        from vllm.v1.outputs import KVConnectorOutput

        self._step += 1
        report = KVConnectorOutput()
        plan = output.kv_connector_metadata
        if hasattr(plan, "load_jobs"):
            self._end_jobs(plan, report)
        else:
            self._end_waits(report)
        self._fail(output, report)
        if garble := getattr(self._scheduler.connector, "garble", None):
            garble(report)
        return report

    def _end_jobs(self, plan: Any, report: Any) -> None:
        """The numbered jobs of vLLM's OffloadingConnector."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        for number, job in plan.load_jobs.items():
            self._jobs[number] = (self._later(), job.req_id)
        for number in plan.store_jobs:
            self._jobs[number] = (self._later(), None)
        flushed = plan.jobs_to_flush or ()
        over = [number for number, (step, _) in self._jobs.items() if step <= self._step or number in flushed]
        if over:
            report.kv_connector_worker_meta = OffloadingWorkerMetadata()
            for number in over:
                report.kv_connector_worker_meta.mark_completed(number)
        loaded = {request_id for number in over if (request_id := self._jobs.pop(number)[1]) is not None}
        report.finished_recving = loaded or None

    def _end_waits(self, report: Any) -> None:
        """What any connector's requests wait for: loads between steps, and blocks that are kept after the end."""
        from vllm.v1.request import RequestStatus

        for request_id, request in self._scheduler.requests.items():
            waits = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS or request.is_finished()
            if waits and request_id not in self._waits:
                self._waits[request_id] = self._later()
        over = [request_id for request_id, step in self._waits.items() if step <= self._step]
        for request_id in over:
            del self._waits[request_id]
            request = self._scheduler.requests.get(request_id)
            if request is None:
                continue
            if request.is_finished():
                report.finished_sending = (report.finished_sending or set()) | {request_id}
            elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                report.finished_recving = (report.finished_recving or set()) | {request_id}

    def _fail(self, output: Any, report: Any) -> None:
        """Some of the loads fail from some block on: those of this step, and those between steps that end in it."""
        if not self._workers.load_failures:
            return
        for request_id in (*(new.req_id for new in output.scheduled_new_reqs), *(report.finished_recving or ())):
            if (blocks := self._loads.pop(request_id, ())) and self._rng.random() < self._workers.load_failures:
                report.invalid_block_ids |= set(blocks[self._rng.randrange(len(blocks)) :])

    def _listen(self, connector: Any, block_size: int) -> None:
        """Note into which blocks each request loads, from what the scheduler says to the connector."""
        look_up, allocated = connector.get_num_new_matched_tokens, connector.update_state_after_alloc
        computed_of: dict[str, int] = {}

        def hear_lookup(request: Any, computed: int) -> Any:
            computed_of[request.request_id] = computed
            return look_up(request, computed)

        def hear_alloc(request: Any, blocks: Any, external: int) -> Any:
            if external:
                start = computed_of[request.request_id]
                table = blocks.get_block_ids()[0]
                self._loads[request.request_id] = table[start // block_size : -(-(start + external) // block_size)]
            return allocated(request, blocks, external)

        connector.get_num_new_matched_tokens, connector.update_state_after_alloc = hear_lookup, hear_alloc

    def _later(self) -> int:
        return self._step + self._rng.randrange(self._workers.latest_steps + 1)
