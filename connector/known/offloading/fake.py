"""vLLM's OffloadingConnector: its jobs have numbers, and its workers report which have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvtrail.connector.known.fake import Copies, Fake, Job


class OffloadingFake(Fake):
    """Replaces the workers' copy between GPU and host."""

    plans_copies = True

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        if not hasattr(plan, "load_jobs"):  # an older vLLM waits for requests, and not for numbered jobs
            return
        per_chunk = connector.connector_scheduler.config.blocks_per_chunk
        for number, job in plan.load_jobs.items():
            yield Job(number, loads=(job.req_id,), copies=_copies(job.dst_spec, job.src_spec, per_chunk, loads=True))
        for number, job in plan.store_jobs.items():
            yield Job(number, copies=_copies(job.src_spec, job.dst_spec, per_chunk, loads=False))

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


def _copies(in_vllm: Any, in_host: Any, per_chunk: int, *, loads: bool) -> Copies:
    """Chunks of several blocks may begin before the first block that is copied."""
    chunks, places = iter(in_host.block_ids.tolist()), []
    for count, first in zip(in_vllm.group_sizes, in_vllm.block_indices, strict=True):
        for number in range(first, first + count):
            if number == first or number % per_chunk == 0:
                chunk = next(chunks)
            places.append((chunk, number % per_chunk))
    return Copies(tuple(in_vllm.block_ids.tolist()), tuple(places), loads)


FAKE = OffloadingFake
