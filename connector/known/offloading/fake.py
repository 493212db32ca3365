"""vLLM's OffloadingConnector: its jobs have numbers, and its workers report which have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvtrail.connector.known.fake import Fake, Job


class OffloadingFake(Fake):
    """Replaces the workers' copy between GPU and host."""

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        if not hasattr(plan, "load_jobs"):  # an older vLLM waits for requests, and not for numbered jobs
            return
        for number, job in plan.load_jobs.items():
            yield Job(number, loads=(job.req_id,))
        for number in plan.store_jobs:
            yield Job(number)

    def flushes(self, plan: Any, job: Job) -> bool:
        return job.key in (plan.jobs_to_flush or ())

    def worker_metadata(self, ended: Sequence[Job]) -> Any:
        if not ended:
            return None
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        metadata = OffloadingWorkerMetadata()
        for job in ended:
            metadata.mark_completed(job.key)  # type: ignore[arg-type]  # a number of `jobs`
        return metadata


FAKE = OffloadingFake
