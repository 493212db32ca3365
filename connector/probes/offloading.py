"""vLLM's native OffloadingConnector: the jobs that its scheduler's side hands to the workers, and their ends.

Its matched prefix is not kept anywhere once the lookup has answered; it stays unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connector.probes import Planned, Probe, Seen


class OffloadingProbe(Probe):
    sees_ends = True

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        if not (metadata.load_jobs or metadata.store_jobs or metadata.jobs_to_flush):
            return None
        size = connector._vllm_config.cache_config.block_size
        jobs = [(number, job, False) for number, job in metadata.load_jobs.items()]
        jobs += [(number, job, True) for number, job in metadata.store_jobs.items()]
        planned = [_planned(number, job, is_store, size) for number, job, is_store in jobs]
        return Seen(planned, flushed=tuple(metadata.jobs_to_flush or ()))

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
    """Blocks of the only KV cache group. Those that need no copy are left out between them, so it is not known whose tokens
    the others hold."""
    blocks_of = job.src_spec if is_store else job.dst_spec
    one_group = len(blocks_of.group_sizes) == 1
    blocks = tuple(int(block) for block in blocks_of.block_ids)
    return Planned(job.req_id, is_store, None, len(blocks) * size, blocks if one_group else None, None, number)


PROBE = OffloadingProbe
