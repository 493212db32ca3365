"""vLLM's native OffloadingConnector: the jobs that its scheduler's side hands to the workers, and their ends.

It does not store the matched prefix after a lookup, so that stays unknown. In vLLM 0.20 its transfers have no numbers,
and nothing of them is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.connector.known.probe import Planned, Probe, Seen


class OffloadingProbe(Probe):
    sees_ends = True

    def knows_plans(self) -> bool:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata

        return "load_jobs" in OffloadingConnectorMetadata.__dataclass_fields__

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        if not hasattr(metadata, "load_jobs") or not (
            metadata.load_jobs or metadata.store_jobs or metadata.jobs_to_flush
        ):
            return None
        size = connector._vllm_config.cache_config.block_size
        loads = [_planned(number, job, job.dst_spec, size) for number, job in metadata.load_jobs.items()]
        stores = [_planned(number, job, job.src_spec, size) for number, job in metadata.store_jobs.items()]
        return Seen(loads, stores, flushed=tuple(metadata.jobs_to_flush or ()))

    def ended(self, connector: Any, output: Any) -> Sequence[int]:
        meta = getattr(output, "kv_connector_worker_meta", None)
        if meta is None or not meta.completed_jobs:
            return ()
        jobs = connector.connector_scheduler._jobs  # without those that a reset has dropped
        return [
            number
            for number, workers in meta.completed_jobs.items()
            if number not in jobs or jobs[number].pending_count <= workers
        ]


def _planned(number: int, job: Any, in_vllm: Any, size: int) -> Planned:
    """`in_vllm` names the blocks of the only KV cache group. Blocks that need no copy are left out, so the positions of the
    others are unknown."""
    one_group = len(in_vllm.group_sizes) == 1
    blocks = tuple(int(block) for block in in_vllm.block_ids)
    return Planned(job.req_id, None, len(blocks) * size, blocks if one_group else None, None, number)


PROBE = OffloadingProbe
