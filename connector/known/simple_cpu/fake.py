"""vLLM's SimpleCPUOffloadConnector: a step has one event for all loads, and one for all stores. Events are numbered by kind,
and end in order on one stream for each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvtrail.connector.known.fake import Copies, Fake, Job

LOAD, STORE = "load", "store"


class SimpleCpuFake(Fake):
    """Replaces the workers' copies between GPU and host, and their two streams."""

    plans_loads = True
    plans_copies = True

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        if plan.load_event >= 0:
            waiting = tuple(plan.load_event_to_reqs[plan.load_event])
            copies = Copies(tuple(plan.load_gpu_blocks), tuple(plan.load_cpu_blocks), loads=True)
            yield Job((LOAD, plan.load_event), loads=waiting, stream=LOAD, copies=copies)
        if plan.store_event >= 0:
            copies = Copies(tuple(plan.store_gpu_blocks), tuple(plan.store_cpu_blocks), loads=False)
            yield Job((STORE, plan.store_event), stream=STORE, copies=copies)

    def flushes(self, plan: Any, job: Job) -> bool:
        """All jobs, when a request is preempted."""
        return bool(plan.need_flush)

    def worker_metadata(self, ended: Sequence[Job]) -> Any:
        from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

        stored = {job.key[1]: 1 for job in ended if job.key[0] == STORE}  # type: ignore[index]  # a key of `jobs`
        return SimpleCPUOffloadWorkerMetadata(completed_store_events=stored) if stored else None


FAKE = SimpleCpuFake
