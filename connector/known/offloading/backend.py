"""vLLM's OffloadingConnector: its jobs have numbers, and its workers tell which have ended."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

from kvtrail.connector.known.backend import Job, Stand


class OffloadingStand(Stand):
    """Replaces the workers' copy between GPU and host."""

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        for number, job in plan.load_jobs.items():
            yield Job(number, loads=(job.req_id,))
        for number in plan.store_jobs:
            yield Job(number)

    def flushed(self, plan: Any, under_way: Collection[Hashable]) -> Collection[Hashable]:
        return plan.jobs_to_flush or ()

    def told(self, ended: Sequence[Job]) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        if not ended:
            return None
        told = OffloadingWorkerMetadata()
        for job in ended:
            told.mark_completed(job.key)  # type: ignore[arg-type]  # a number of `jobs`
        return told


STAND = OffloadingStand
