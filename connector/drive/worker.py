"""The workers of a bare scheduler, made up: transfers of vLLM's OffloadingConnector that end late and out of order.

Nothing is copied. What is real is the conversation: each planned job ends once, at the latest when it is to be flushed, and
the report goes to the scheduler in vLLM's own form. Loads within the step may fail, and the blocks that a connector keeps
after a request's end (`keeps_blocks`) are given back some steps later.
"""

from __future__ import annotations

import random
from typing import Any

LATEST_STEPS = 5
"""Steps after which a transfer has ended."""


class MadeUpWorker:
    """One worker. Call it with each `SchedulerOutput`; it answers with the report of that step."""

    def __init__(self, connector: Any, *, seed: int = 0, load_failures: float = 0.0) -> None:
        """`load_failures`: the share of the OffloadConnector's loads that fail, and are reported."""
        self._connector = connector
        self._load_failures = load_failures
        self._kept: dict[str, int] = {}
        self._rng = random.Random(seed)
        self._due: dict[int, tuple[int, str | None]] = {}
        self._step = 0

    def __call__(self, output: Any) -> Any:
        """The workers' report after a step: a `KVConnectorOutput`."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
        from vllm.v1.outputs import KVConnectorOutput

        self._step += 1
        plan = output.kv_connector_metadata
        for number, job in getattr(plan, "load_jobs", {}).items():
            self._due[number] = (self._later(), job.req_id)
        for number in getattr(plan, "store_jobs", {}):
            self._due[number] = (self._later(), None)
        flushed = getattr(plan, "jobs_to_flush", None) or ()
        over = [number for number, (step, _) in self._due.items() if step <= self._step or number in flushed]
        loads = {request_id for number in over if (request_id := self._due.pop(number)[1]) is not None}
        report = KVConnectorOutput(finished_recving=loads or None)
        if over:
            meta = OffloadingWorkerMetadata()
            for number in over:
                meta.mark_completed(number)
            report.kv_connector_worker_meta = meta
        if getattr(self._connector, "keeps_blocks", False):
            self._kept.update((request_id, self._later()) for request_id in output.finished_req_ids)
            report.finished_sending = {
                request_id for request_id, step in self._kept.items() if step <= self._step
            } or None
            for request_id in report.finished_sending or ():
                del self._kept[request_id]
        for copy in getattr(plan, "loads", ()):
            if self._rng.random() < self._load_failures:
                report.invalid_block_ids |= set(copy.blocks[self._rng.randrange(len(copy.blocks)) :])
        if garble := getattr(self._connector, "garble", None):
            garble(report)
        return report

    def _later(self) -> int:
        return self._step + self._rng.randrange(LATEST_STEPS)
