"""Connectors of LMCache as they would be without a finding: each changes that one thing."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_mp_connector import (
    LMCacheMPConnectorUpstream,
    LMCacheMPRequestState,
)


class LMCacheMPConnectorSets(LMCacheMPConnectorUpstream):
    """A lookup sets the store's beginning, and does not add to it."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        tracker = self.request_trackers[request.request_id]
        if tracker.state is LMCacheMPRequestState.PREFETCHING:
            tracker.num_stored_blocks = tracker.num_lmcache_hit_blocks
        return answer


class LMCacheMPConnectorForgets(LMCacheMPConnectorUpstream):
    """After a load that failed in whole a request is looked up as a new one, once, and not again."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tracker = self.request_trackers.get(request.request_id)
        if tracker is not None and tracker.state is LMCacheMPRequestState.READY:
            tracker.num_lmcache_hit_blocks = tracker.num_vllm_hit_blocks = tracker.num_stored_blocks = 0
            tracker.allocated_block_ids.clear()
            return 0, False
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return answer
