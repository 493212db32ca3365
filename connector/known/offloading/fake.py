"""vLLM's OffloadingConnector: jobs have numbers, and workers report the ended jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvtrail.connector.known.fake import Copies, Fake, Job


class OffloadingFake(Fake):
    """Replaces the workers' copies between GPU and host."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        super().__init__(extra)
        self.plans_copies = _names_places()

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        if not hasattr(plan, "load_jobs"):  # an older vLLM has no numbered jobs: it waits for requests
            return
        for number, job in plan.load_jobs.items():
            yield Job(number, loads=(job.req_id,), copies=self._copies(connector, job, loads=True))
        for number, job in plan.store_jobs.items():
            yield Job(number, copies=self._copies(connector, job, loads=False))

    def _copies(self, connector: Any, job: Any, *, loads: bool) -> Copies | None:
        """The copies of a job. A chunk of several blocks may begin before the first copied block."""
        if not self.plans_copies:
            return None
        in_vllm, in_host = (job.dst_spec, job.src_spec) if loads else (job.src_spec, job.dst_spec)
        config, chunks, places = connector.connector_scheduler.config, iter(in_host.block_ids), []
        per_chunk = config.blocks_per_chunk if hasattr(config, "blocks_per_chunk") else config.block_size_factor
        for count, first in zip(in_vllm.group_sizes, in_vllm.block_indices, strict=True):
            for number in range(first, first + count):
                if number == first or number % per_chunk == 0:
                    chunk = int(next(chunks))
                places.append((chunk, number % per_chunk))
        return Copies(tuple(in_vllm.block_ids.tolist()), tuple(places), loads)

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


def _names_places() -> bool:
    """Whether the jobs of this vLLM name the source and the target of their copies; those of an older vLLM do not."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import TransferJob
    except ImportError:
        return False
    return "src_spec" in TransferJob.__dataclass_fields__


FAKE = OffloadingFake
