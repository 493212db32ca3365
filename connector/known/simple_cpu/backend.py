"""vLLM's SimpleCPUOffloadConnector: the loads and the stores of a step are an event each, numbered by kind, and a stream ends
them in their order."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

from kvtrail.connector.known.backend import Job, Stand

LOAD, STORE = "load", "store"


class SimpleCpuStand(Stand):
    """Replaces the workers' copy between GPU and host, and the two streams on which it runs."""

    tells_loads = True

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        if plan.load_event >= 0:
            waiting = tuple(plan.load_event_to_reqs[plan.load_event])
            yield Job((LOAD, plan.load_event), loads=waiting, stream=LOAD)
        if plan.store_event >= 0:
            yield Job((STORE, plan.store_event), stream=STORE)

    def flushed(self, plan: Any, under_way: Collection[Hashable]) -> Collection[Hashable]:
        """With a preemption, all of them."""
        return under_way if plan.need_flush else ()

    def told(self, ended: Sequence[Job]) -> Any:
        from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

        stored = {job.key[1]: 1 for job in ended if job.key[0] == STORE}  # type: ignore[index]  # a key of `jobs`
        return SimpleCPUOffloadWorkerMetadata(completed_store_events=stored) if stored else None


STAND = SimpleCpuStand
