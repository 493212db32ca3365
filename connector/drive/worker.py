"""The workers of a bare scheduler, made up: transfers of vLLM's OffloadingConnector that end late and out of order.

Nothing is copied. What is real is the conversation: each planned job ends once, at the latest when it is to be flushed, and
the report goes to the scheduler in vLLM's own form.
"""

from __future__ import annotations

import random
from typing import Any

LATEST_STEPS = 5
"""Steps after which a transfer has ended."""


class MadeUpWorker:
    """One worker. Call it with each `SchedulerOutput`; it answers with the report of that step."""

    def __init__(self, connector: Any, *, seed: int = 0) -> None:
        self._connector = connector
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
        if garble := getattr(self._connector, "garble", None):
            garble(report)
        return report

    def _later(self) -> int:
        return self._step + self._rng.randrange(LATEST_STEPS)
