"""vLLM's native OffloadingConnector: the jobs that its scheduler's side hands to the workers, and their ends.

Its matched prefix is not kept anywhere once the lookup has answered; it stays unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connector.probes import Planned, Probe


class OffloadingProbe(Probe):
    sees_plans = True

    def plans(self, connector: Any, metadata: Any) -> Sequence[Planned]:
        if not (metadata.load_jobs or metadata.store_jobs):
            return ()
        size = connector._vllm_config.cache_config.block_size
        jobs = [(number, job, False) for number, job in metadata.load_jobs.items()]
        jobs += [(number, job, True) for number, job in metadata.store_jobs.items()]
        return [_planned(number, job, is_store, size) for number, job, is_store in jobs]

    def ended(self, connector: Any, output: Any) -> Sequence[int]:
        meta = getattr(output, "kv_connector_worker_meta", None)
        if meta is None or not meta.completed_jobs:
            return ()
        jobs = connector.connector_scheduler._jobs  # a job that a reset has dropped is not among them any more
        return [
            number
            for number, workers in meta.completed_jobs.items()
            if number not in jobs or jobs[number].pending_count <= workers
        ]


def _planned(number: int, job: Any, is_store: bool, size: int) -> Planned:
    """Blocks of the first KV cache group; they are consecutive in the request's table."""
    blocks_of = job.src_spec if is_store else job.dst_spec
    count = int(blocks_of.group_sizes[0])
    blocks = tuple(int(block) for block in blocks_of.block_ids[:count])
    one_group = len(blocks_of.group_sizes) == 1
    start = int(blocks_of.block_indices[0]) * size if one_group else None
    return Planned(job.req_id, is_store, start, count * size, blocks if one_group else None, None, number)


PROBE = OffloadingProbe
