"""Bugs of somebody who had not seen kvtrail's own, planted in the tiered store: each needs two things to happen together."""

from __future__ import annotations

from typing import Any

from planted.tiered_store import Meta, TieredConnector


class AbortedPrefetchKeepsItsPins(TieredConnector):
    """An abort while the prefetch for a waiting request is under way: nobody gives its slots back, even at a reset."""

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        lease = self.leases.get(request.request_id)
        if lease and any(entry.filling for entry in lease):
            del self.leases[request.request_id]
        return super().request_finished(request, block_ids)


class StoresOfTheFailedStepKept(TieredConnector):
    """A load within a step fails: its own chunks are forgotten, and what the same step computed from them is not."""

    def _invalid(self, blocks: set[int]) -> None:
        bad = [entry for of_block in self.loaded.values() for block, entry in of_block.items() if block in blocks]
        for opened in self.open.values():
            if opened.job.kind == "store" and blocks.intersection(opened.job.ops[0].blocks):
                bad += opened.entries
        self._failed(bad)


class PrefetchNotTriedAgain(TieredConnector):
    """A lookup is answered when all of its chunks are in RAM, and a prefetch that got no slot is never made."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        lease = self.leases.get(request.request_id)
        if lease and any(not entry.in_ram and not entry.dead for entry in lease):
            return None, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class OldTableAppended(TieredConnector):
    """A request that resumes with fewer blocks keeps the end of its old table."""

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        kept = {rid: self.states[rid] for rid in scheduler_output.preempted_req_ids or () if rid in self.states}
        self.old = getattr(self, "old", {}) | kept
        return super().build_connector_meta(scheduler_output)

    def _begin(self, rid: str, blocks: list[int]) -> None:
        old = self.old.pop(rid, None)
        super()._begin(rid, blocks)
        if old is not None and old.request is self.states[rid].request:
            self.states[rid].blocks += old.blocks[len(blocks) :]
