"""A host store that copies in threads of their own: slots with reference counts, a segmented LRU that protects what was
found again, loads layer by layer or between steps, and ends of stores that travel as workers' metadata. It is correct;
`thread_bugs` breaks it."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

Pairs = list[tuple[int, int]]  # (slot, block)


@dataclass(eq=False)
class Entry:
    key: bytes
    slot: int
    refs: int = 0  # transfers under way, of either direction
    ready: bool = False  # all ranks have stored it
    dead: bool = False  # no longer in the index; the slot is free once refs is 0


@dataclass
class Work(KVConnectorMetadata):
    loads: list[tuple[str | int, bool, Pairs]] = field(default_factory=list)
    stores: list[tuple[int, Pairs]] = field(default_factory=list)
    fence: set[int] = field(default_factory=set)  # store jobs that must end before this step writes
    keep: dict[str, set[int]] = field(default_factory=dict)  # the jobs for which ended requests keep blocks


@dataclass
class Done(KVConnectorWorkerMetadata):
    jobs: Counter[Any] = field(default_factory=Counter)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, Done)
        return Done(self.jobs + other.jobs)


@dataclass
class Live:
    request: Any
    computed: int
    table: list[int] = field(default_factory=list)
    done: int = 0  # blocks looked at for storing
    stale: bool = False  # runs on KV from before a reset
    jobs: set[int] = field(default_factory=set)


class Slab:
    """The scheduler's view of the slots."""

    def __init__(self, capacity: int, protected: float) -> None:
        self.free = list(range(capacity))
        self.index: dict[bytes, Entry] = {}
        self.probation: OrderedDict[bytes, None] = OrderedDict()
        self.protected: OrderedDict[bytes, None] = OrderedDict()
        self.most_protected = int(capacity * protected)

    def take(self, key: bytes, not_these: set[bytes]) -> Entry | None:
        if not self.free:
            for segment in (self.probation, self.protected):
                victim = next((k for k in segment if k not in not_these and self.evictable(self.index[k])), None)
                if victim is not None:
                    self.kill(self.index[victim])
                    break
            else:
                return None
        entry = self.index[key] = Entry(key, self.free.pop())
        self.probation[key] = None
        return entry

    def evictable(self, entry: Entry) -> bool:
        return entry.ready and not entry.refs

    def kill(self, entry: Entry) -> None:
        if entry.dead:
            return
        entry.dead = True
        del self.index[entry.key]
        self.probation.pop(entry.key, None)
        self.protected.pop(entry.key, None)
        if not entry.refs:
            self.free.append(entry.slot)

    def unref(self, entry: Entry) -> None:
        entry.refs -= 1
        if entry.dead and not entry.refs:
            self.free.append(entry.slot)

    def touch(self, keys: list[bytes], promote: bool) -> None:
        for key in reversed(keys):  # the end of a prefix goes first
            if key in self.protected:
                self.protected.move_to_end(key)
            elif promote:
                del self.probation[key]
                self.protected[key] = None
            else:
                self.probation.move_to_end(key)
        while len(self.protected) > self.most_protected:
            key, _ = self.protected.popitem(last=False)
            self.probation[key] = None


class ThreadStore(KVConnectorBase_V1):
    kvtrail_check_settings = {  # noqa: RUF012
        "capacity": (12, 40, 400), "load_async": (True, False), "background": (True, True, False),
        "protected": (0.75, 0.0),
    }  # fmt: skip

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.capacity = extra.get("capacity", 1024)
        self.load_async = extra.get("load_async", True)
        self.background = extra.get("background", True)
        self.block_size = vllm_config.cache_config.block_size
        self.num_blocks = kv_cache_config.num_blocks
        self.ranks = vllm_config.parallel_config.world_size
        # scheduler
        self.slab = Slab(self.capacity, extra.get("protected", 0.75))
        self.live: dict[str, Live] = {}
        self.work = Work()
        self.next_job = 0
        self.storing: dict[int, list[Entry]] = {}
        self.loading: dict[str | int, list[tuple[Entry, int]]] = {}
        self.reported: Counter[Any] = Counter()
        self.latest: deque[list[Entry]] = deque(maxlen=2)  # stored by the last steps
        # worker
        self.caches: dict[str, torch.Tensor] = {}
        self.slots: dict[str, torch.Tensor] = {}
        self.pool: ThreadPoolExecutor  # of loads
        self.save_pool: ThreadPoolExecutor
        self.saves: dict[int, Future[None]] = {}
        self.recvs: dict[str | int, Future[None]] = {}
        self.layer_loads: dict[str, list[Future[None]]] = {}
        self.kept: dict[str, set[int]] = {}
        self.over: Counter[Any] = Counter()

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if old := self.live.get(request.request_id):
            self.work.fence |= old.jobs  # it has been preempted
        self.live[request.request_id] = Live(request, num_computed_tokens)
        blocks = 0
        for key in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            entry = self.slab.index.get(key)
            if entry is None or not entry.ready:
                break
            blocks += 1
        new = max(0, blocks * self.block_size - num_computed_tokens)
        return new, self.load_async and new > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            return
        (table,) = blocks.get_block_ids()
        first = self.live[request.request_id].computed // self.block_size
        last = first + num_external_tokens // self.block_size
        keys = request.block_hashes[:last]
        self.slab.touch([key for key in keys if key in self.slab.index], promote=True)
        pairs = []
        job: str | int = request.request_id if self.load_async else self.new_job()
        for key, block in zip(keys[first:], table[first:last], strict=True):
            entry = self.slab.index[key]
            entry.refs += 1
            pairs.append((entry, block))
        self.loading[job] = pairs
        self.work.loads.append((job, self.load_async, [(entry.slot, block) for entry, block in pairs]))

    def new_job(self) -> int:
        self.next_job += 1
        return self.next_job

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        for request_id in scheduler_output.preempted_req_ids or ():
            if live := self.live.get(request_id):
                self.work.fence |= live.jobs
                live.jobs = set()
        before = {}
        for new in scheduler_output.scheduled_new_reqs:
            (table,) = new.block_ids
            self.live[new.req_id].table = list(table)
            before[new.req_id] = new.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, added, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if request_id in cached.resumed_req_ids:
                self.live[request_id].table = []
            if added:
                self.live[request_id].table += added[0]
            before[request_id] = computed
        stored: list[Entry] = []
        for request_id, count in scheduler_output.num_scheduled_tokens.items():
            stored += self.store(self.live[request_id], (before[request_id] + count) // self.block_size)
        self.latest.append(stored)
        work, self.work = self.work, Work()
        return work

    def store(self, live: Live, full: int) -> list[Entry]:
        keys = live.request.block_hashes[:full]
        if live.stale or len(keys) <= live.done:
            return []
        mine, taken = set(keys), []
        pairs: Pairs = []
        for key, block in zip(keys, live.table, strict=False):
            if key not in self.slab.index:
                if (entry := self.slab.take(key, mine)) is None:
                    break
                entry.refs += 1
                taken.append(entry)
                pairs.append((entry.slot, block))
        else:
            live.done = len(keys)
        self.slab.touch([key for key in keys if key in self.slab.index], promote=False)
        if taken:
            job = self.new_job()
            self.storing[job] = taken
            live.jobs.add(job)
            self.work.stores.append((job, pairs))
        return taken

    def update_connector_output(self, connector_output: Any) -> None:
        if invalid := connector_output.invalid_block_ids:
            for stored in self.latest:
                for entry in stored:
                    self.slab.kill(entry)
            for pairs in self.loading.values():
                for entry, block in pairs:
                    if block in invalid:
                        self.slab.kill(entry)
            for live in self.live.values():
                live.done = 0
        if meta := connector_output.kv_connector_worker_meta:
            self.reported += meta.jobs
            for job in [job for job, count in self.reported.items() if count >= self.ranks]:
                del self.reported[job]
                self.job_done(job)
        for request_id in connector_output.finished_recving or ():
            self.load_done(request_id)

    def job_done(self, job: int) -> None:
        if job in self.loading:
            self.load_done(job)
            return
        for entry in self.storing.pop(job):
            entry.ready = True
            self.slab.unref(entry)
        for live in self.live.values():
            live.jobs.discard(job)

    def load_done(self, job: str | int) -> None:
        for entry, _ in self.loading.pop(job, ()):
            self.slab.unref(entry)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        live = self.live.pop(request.request_id, None)
        if live is None or not live.jobs:
            return False, None
        if not block_ids:  # preempted
            self.work.fence |= live.jobs
            return False, None
        self.work.keep[request.request_id] = set(live.jobs)
        return True, None

    def reset_cache(self) -> bool:
        for entry in list(self.slab.index.values()):
            self.slab.kill(entry)
        for live in self.live.values():
            live.stale = True  # until it is looked up again
        return True

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.pool, self.save_pool = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        for layer, cache in kv_caches.items():
            self.caches[layer] = cache.movedim(cache.shape.index(self.num_blocks), 0)
            self.slots[layer] = torch.empty((self.capacity, *self.caches[layer].shape[1:]), dtype=cache.dtype)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, Work)
        for job in kv_connector_metadata.fence:
            if job in self.saves:
                self.saves[job].result()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for job, asynchronous, pairs in self.now().loads:
            if asynchronous:
                self.recvs[job] = self.pool.submit(self.load, list(self.caches), pairs)
                continue
            for layer in self.caches:
                self.layer_loads.setdefault(layer, []).append(self.pool.submit(self.load, [layer], pairs))
            self.layer_loads[next(iter(self.caches))][-1].result()  # it is needed at once
            self.over[job] += 1

    def now(self) -> Work:
        work = self._get_connector_metadata()
        assert isinstance(work, Work)
        return work

    def load(self, layers: list[str], pairs: Pairs) -> None:
        for layer in layers:
            for slot, block in pairs:
                self.caches[layer][block].copy_(self.slots[layer][slot])

    def save(self, pairs: Pairs) -> None:
        for layer, cache in self.caches.items():
            for slot, block in pairs:
                self.slots[layer][slot].copy_(cache[block])

    def wait_for_layer_load(self, layer_name: str) -> None:
        for future in self.layer_loads.pop(layer_name, ()):
            future.result()

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        for layer in list(self.layer_loads):  # layers that did not run
            self.wait_for_layer_load(layer)
        for job, pairs in self.now().stores:
            self.saves[job] = self.save_pool.submit(self.save, pairs)
            if not self.background:
                self.saves[job].result()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        self.kept |= self.now().keep
        for job in [job for job, future in self.saves.items() if future.done()]:
            self.saves.pop(job).result()
            self.over[job] += 1
        sent = {name for name, jobs in self.kept.items() if not jobs & self.saves.keys()}
        received = {str(name) for name, future in self.recvs.items() if future.done()}
        for name in sent:
            del self.kept[name]
        for name in received:
            self.recvs.pop(name).result()
        return sent, received

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        over, self.over = self.over, Counter()
        return Done(over) if over else None
