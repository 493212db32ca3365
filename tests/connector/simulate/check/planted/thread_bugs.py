"""Bugs of somebody who had not seen kvtrail's own, planted in the thread store: each needs things that overlap."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from planted.thread_store import ThreadStore


class FenceOfResetLost(ThreadStore):
    """A request that a reset has preempted is looked up in the same step: it gets another record, and nobody waits for the
    stores that read its old blocks."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if old := self.live.get(request.request_id):
            old.jobs = set()
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class EndNotedByKey(ThreadStore):
    """A store's end is noted by its keys: after a reset, other stores may have these keys by then."""

    def job_done(self, job: int) -> None:
        for old in self.storing.get(job, ()):
            if (entry := self.slab.index.get(old.key)) is not None:
                entry.ready = True
        super().job_done(job)


class PinIsAFlag(ThreadStore):
    """The first of two loads of an entry that ends takes the pin of the other one away."""

    def load_done(self, job: str | int) -> None:
        for entry, _ in self.loading.pop(job, ()):
            if entry.refs:
                entry.refs = 1
                self.slab.unref(entry)


class LatestJobOnly(ThreadStore):
    """Blocks of an ended request are given back when its latest store has ended; with several threads others may be open."""

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        super().register_kv_caches(kv_caches)
        self.save_pool = ThreadPoolExecutor(4)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        keep = self.now().keep
        for request_id, jobs in keep.items():
            keep[request_id] = {max(jobs)}
        return super().get_finished(finished_req_ids)


class WorkerDies(ThreadStore):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise RuntimeError("no stream")
