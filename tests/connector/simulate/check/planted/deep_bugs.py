"""Bugs that need several things at once, planted in the two stores: the first turn of the profiles seldom meets most."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from planted.chunk_store import ChunkStore
from planted.host_cache import HostCache


class LeaseOfSecondPreemption(HostCache):
    """A lookup after a second preemption forgets the lease of the one before."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if request.num_preemptions >= 2:
            self.track(request).lease = []
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class ResetRefusedTooLate(HostCache):
    """A reset is refused while a load runs, but has forgotten the leases by then."""

    def reset_cache(self) -> bool:
        if any(tracked.loading for tracked in self.tracked.values()):
            self.pins.clear()
        return super().reset_cache()


class SlotFreedTwice(HostCache):
    """A request that ends while it loads, and was preempted before, gives back what others still use."""

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        tracked = self.tracked.get(request.request_id)
        if tracked is not None and tracked.loading and request.num_preemptions:
            self.free += [self.index[key] for key in tracked.lease if key in self.index]
        return super().request_finished(request, block_ids)


class RememberedMatch(HostCache):
    """Where the cache is full, a request that was preempted is matched as it was before."""

    def matched(self, request: Any) -> int:
        tracked, now = self.track(request), super().matched(request)
        before: int = getattr(tracked, "before", 0)
        tracked.before = now  # type: ignore[attr-defined]
        return max(now, before) if request.num_preemptions and len(self.index) == self.capacity else now


class LoadDroppedWithThePreempted(HostCache):
    """What a preempted request was to load is dropped, also where a reset has preempted it and the same step loads again."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        gone = scheduler_output.preempted_req_ids or ()
        self.plan.loads = [copy for copy in self.plan.loads if copy.request_id not in gone]
        return super().build_connector_meta(scheduler_output)


class FenceForgotten(ChunkStore):
    """A preemption does not wait for the copies that are still to be made: they read what others have computed by then."""

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        pass


class KeepsWhatAFailedRequestStored(HostCache):
    """What was computed of a failed load stays, where vLLM ends the request for it: it says so before it names the blocks."""

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.latest = []
        return super().request_finished(request, block_ids)
