"""A host cache in the size of a first version: chunks of KV under vLLM's hashes, leases, asynchronous loads, and plans that
travel as metadata. It is correct; `bugs` breaks it. Of kvtrail it knows one attribute."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole

from planted.whole_steps import WholeSteps


@dataclass
class Copy:
    """A chunk, or its blocks from number `first` on, between its slot and the blocks of a request."""

    request_id: str
    start: int
    key: bytes
    slot: int
    first: int
    blocks: list[int]


@dataclass
class Plan(KVConnectorMetadata):
    """The copies of a step; a request that loads asynchronously is received when all of its copies are done."""

    loads: list[Copy] = field(default_factory=list)
    stores: list[Copy] = field(default_factory=list)
    receives: set[str] = field(default_factory=set)


@dataclass
class Tracked:
    """What the scheduler's side remembers of a request: its leased chunks, and up to where it is stored."""

    request: Any
    epoch: int = 0
    stored: int = 0
    lease: list[bytes] = field(default_factory=list)
    loading: bool = False


class HostCache(WholeSteps):
    """`chunk_size` tokens a chunk, `capacity` chunks, and `late`: loads run between steps."""

    kvtrail_check_settings = {"chunk_size": (32, 64, 128), "capacity": (8, 24, 200), "late": (True, False)}  # noqa: RUF012

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.block: int = vllm_config.cache_config.block_size
        self.chunk: int = extra.get("chunk_size", 64)
        self.capacity: int = extra.get("capacity", 24)
        self.late: bool = extra.get("late", True)
        self.index: OrderedDict[bytes, int] = OrderedDict()
        self.free: list[int] = list(range(self.capacity))
        self.pins: Counter[bytes] = Counter()
        self.tracked: dict[str, Tracked] = {}
        self.plan = Plan()
        self.latest: list[Copy] = []
        self.caches: list[torch.Tensor] = []
        self.room: list[torch.Tensor] = []
        self.received: set[str] = set()

    # Scheduler's side.

    def keys(self, request: Any) -> list[bytes]:
        return list(request.block_hashes[self.chunk // self.block - 1 :: self.chunk // self.block])

    def track(self, request: Any) -> Tracked:
        tracked = self.tracked.get(request.request_id)
        if tracked is None:
            tracked = self.tracked[request.request_id] = Tracked(request)
        return tracked

    def matched(self, request: Any) -> int:
        chunks = 0
        for key in self.keys(request)[: (request.num_tokens - 1) // self.chunk]:
            if key not in self.index:
                break
            chunks += 1
        return chunks

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tracked, chunks = self.track(request), self.matched(request)
        self.release(tracked)
        new = max(0, chunks * self.chunk - num_computed_tokens)
        if new:
            self.lease(tracked, self.keys(request)[num_computed_tokens // self.chunk : chunks])
        return new, bool(new) and self.late

    def lease(self, tracked: Tracked, keys: list[bytes]) -> None:
        tracked.lease = keys
        self.pins.update(keys)

    def release(self, tracked: Tracked) -> None:
        for key in tracked.lease:
            self.pins[key] -= 1
            if not self.pins[key]:
                del self.pins[key]
        tracked.lease = []

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tracked = self.track(request)
        if tracked.loading:
            return
        if not num_external_tokens:
            self.release(tracked)
            return
        (table,) = blocks.get_block_ids()
        end = self.matched(request) * self.chunk
        self.load(request, end - num_external_tokens, end, table)
        tracked.loading, tracked.stored = True, end
        if self.late:
            self.plan.receives.add(request.request_id)

    def load(self, request: Any, start: int, end: int, table: list[int]) -> None:
        for chunk in range(start // self.chunk, end // self.chunk):
            self.plan.loads.append(self.copy(request, chunk, max(start, chunk * self.chunk), table))

    def copy(self, request: Any, chunk: int, start: int, table: list[int]) -> Copy:
        key, end = self.keys(request)[chunk], (chunk + 1) * self.chunk
        blocks = list(table[start // self.block : end // self.block])
        return Copy(request.request_id, start, key, self.index[key], start % self.chunk // self.block, blocks)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        before = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        running = scheduler_output.scheduled_cached_reqs
        before.update(zip(running.req_ids, running.num_computed_tokens, strict=True))
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            tracked = self.tracked[request_id]
            if tracked.epoch != tracked.request.num_preemptions:
                tracked.epoch, tracked.stored = tracked.request.num_preemptions, 0
            self.store(tracked, before[request_id] + scheduled, scheduler_output.kv_connector_block_state)
        plan, self.plan = self.plan, Plan()
        self.latest = plan.stores
        return plan

    def store(self, tracked: Tracked, computed: int, tables: Any) -> None:
        request, keys = tracked.request, self.keys(tracked.request)
        while tracked.stored + self.chunk <= computed and tracked.stored // self.chunk < len(keys):
            chunk = tracked.stored // self.chunk
            if keys[chunk] in self.index:
                self.index.move_to_end(keys[chunk])
            elif not self.insert(keys[chunk]):
                return
            else:
                (table,) = tables.get_block_ids(request.request_id)
                self.plan.stores.append(self.copy(request, chunk, tracked.stored, table))
            tracked.stored += self.chunk

    def insert(self, key: bytes) -> bool:
        """Take a slot for a chunk, from the least recently used one without a lease; False if there is none."""
        if not self.free:
            victim = next((each for each in self.index if not self.pins[each] and not self.planned(each)), None)
            if victim is None:
                return False
            self.free.append(self.index.pop(victim))
        self.index[key] = self.free.pop()
        return True

    def planned(self, key: bytes) -> bool:
        return any(copy.key == key for copy in (*self.plan.loads, *self.plan.stores))

    def update_connector_output(self, connector_output: Any) -> None:
        for request_id in connector_output.finished_recving or ():
            if request_id in self.tracked:
                self.loaded(self.tracked[request_id])
        if not self.late:
            for tracked in self.tracked.values():
                self.loaded(tracked)
        for tracked in self.tracked.values():
            if connector_output.invalid_block_ids:
                self.failed(tracked, connector_output.invalid_block_ids)

    def loaded(self, tracked: Tracked) -> None:
        if tracked.loading:
            tracked.loading = False
            self.release(tracked)

    def failed(self, tracked: Tracked, blocks: set[int]) -> None:
        """Tokens behind a block that could not be loaded are computed again: forget what was stored of them."""
        assert self._kv_cache_manager is not None
        (table,) = self._kv_cache_manager.get_block_ids(tracked.request.request_id)
        bad = next((number for number, block in enumerate(table) if block in blocks), None)
        if bad is None:
            return
        good = bad * self.block // self.chunk
        for key in self.keys(tracked.request)[good : tracked.stored // self.chunk]:
            self.drop(key)
        tracked.stored = min(tracked.stored, good * self.chunk)

    def drop(self, key: bytes) -> None:
        if key in self.index and not self.pins[key]:
            self.free.append(self.index.pop(key))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if request.request_id in self.tracked:
            self.release(self.tracked.pop(request.request_id))
        if request.status.name == "FINISHED_ERROR":  # its load has failed, and it has stored what was computed of that
            for copy in self.latest:
                if copy.request_id == request.request_id:
                    self.drop(copy.key)
        return False, None

    def reset_cache(self) -> bool:
        if any(tracked.loading for tracked in self.tracked.values()):
            return False
        self.index.clear()
        self.pins.clear()
        self.free = list(range(self.capacity))
        for tracked in self.tracked.values():
            tracked.stored, tracked.lease = 0, []
        return True

    # Worker's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.caches = list(kv_caches.values())
        per = self.chunk // self.block
        self.room = [torch.zeros((self.capacity, per, *cache.shape[1:]), dtype=cache.dtype) for cache in self.caches]

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        for copy in plan.loads:
            for cache, room in zip(self.caches, self.room, strict=True):
                cache[copy.blocks] = room[copy.slot, copy.first : copy.first + len(copy.blocks)]
        self.received |= plan.receives

    def wait_for_save(self) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        for copy in plan.stores:
            for cache, room in zip(self.caches, self.room, strict=True):
                room[copy.slot, : len(copy.blocks)] = cache[copy.blocks]

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Its copies do not fail, but kvtrail makes some fail."""
        return set()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        received, self.received = self.received, set()
        return None, received
