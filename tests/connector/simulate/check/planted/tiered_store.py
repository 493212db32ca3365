"""A KV connector with two tiers: a small pool of RAM slots, and files on disk.

All decisions are the scheduler side's: it owns the index and both tiers' slots, and sends numbered jobs to the workers. Each
worker has one thread, which runs its jobs in order, so a later job may be given a slot that an earlier one still reads.
Only loads within a step run on the worker's main thread; their chunks are pinned until the step is over.

  store     GPU blocks -> RAM slot          (asynchronous; the GPU blocks are kept, or waited for at a preemption)
  spill     RAM slot -> file                (when a chunk is evicted from RAM)
  prefetch  file -> RAM slot                (a lookup that finds few chunks on disk; "ask me later" meanwhile)
  load      RAM slots and files -> GPU blocks (between steps, where a hit is not in RAM)
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from planted.whole_steps import WholeSteps


@dataclass
class Op:
    """A copy between a chunk's place (`ram` slot, else `disk` slot) and GPU blocks, from the chunk's `first`-th block on."""

    ram: Any
    disk: Any
    first: int = 0
    blocks: list[int] = field(default_factory=list)


@dataclass
class Job:
    number: int
    kind: str  # store, spill, prefetch, load
    request_id: Any
    ops: list[Op]


@dataclass
class Meta(KVConnectorMetadata):
    loads: list[Op] = field(default_factory=list)  # within this step
    jobs: list[Job] = field(default_factory=list)
    flush: set[int] = field(default_factory=set)  # jobs that read blocks which are somebody else's now
    kept: set[str] = field(default_factory=set)  # ended requests that keep their blocks until their stores have ended


@dataclass
class Report(KVConnectorWorkerMetadata):
    done: Counter[int] = field(default_factory=Counter)
    failed: set[int] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        return Report(self.done + other.done, self.failed | other.failed)


@dataclass(eq=False)
class Entry:
    key: Any
    ram: Any = None
    disk: Any = None
    ready: bool = False  # it was stored, on all ranks
    filling: bool = False  # a prefetch writes to its RAM slot
    pins: int = 0
    dead: bool = False

    @property
    def in_ram(self) -> bool:
        return self.ram is not None and not self.filling


@dataclass
class State:
    """A request that has run."""

    request: Any
    blocks: list[int]
    next: int = 0  # the first chunk that may not be stored yet


@dataclass
class Open:
    """A job under way: its entries, and the blocks that what it stores was computed from."""

    job: Job
    entries: list[Entry]
    table: set[int] = field(default_factory=set)
    ranks: int = 0  # on how many it has ended


class TieredConnector(WholeSteps):
    kvtrail_check_settings: ClassVar = {
        "ram_chunks": [4, 16, 64],
        "disk_chunks": [8, 32, 256],
        "chunk_blocks": [1, 2, 4],
        "prefetch_chunks": [0, 3, 16],
    }

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        get = self._kv_transfer_config.get_from_extra_config
        self.block_size = vllm_config.cache_config.block_size
        self.chunk_blocks = int(get("chunk_blocks", 2))
        self.n_ram, self.n_disk = int(get("ram_chunks", 64)), int(get("disk_chunks", 1024))
        self.most_prefetch = int(get("prefetch_chunks", 8))
        parallel = vllm_config.parallel_config
        self.world = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        if role == KVConnectorRole.SCHEDULER:
            self.index: dict[Any, Entry] = {}
            self.ram: OrderedDict[Entry, None] = OrderedDict()  # who has a RAM slot, the least recently used first
            self.disk: OrderedDict[Entry, None] = OrderedDict()
            self.free_ram, self.free_disk = list(range(self.n_ram)), list(range(self.n_disk))
            self.requests: dict[str, Any] = {}
            self.states: dict[str, State] = {}
            self.answers: dict[str, tuple[int, list[Entry]]] = {}  # of the last lookup: from which token, which chunks
            self.leases: dict[str, list[Entry]] = {}  # what is prefetched for a waiting request
            self.wanted: list[Entry] = []
            self.step_pins: list[Entry] = []
            self.within: set[str] = set()  # requests that load within this step
            self.loaded: dict[str, dict[int, Entry]] = {}  # by request and block, until the load's end is known
            self.stale: set[str] = set()  # requests with KV from before a reset
            self.open: dict[int, Open] = {}
            self.stores: dict[str, set[int]] = {}  # of a request, as long as its blocks are read
            self.numbers = 0
            self.meta = Meta()
        else:
            self.rank = parallel.rank
            self.folder = tempfile.TemporaryDirectory(prefix="tiered-")
            self.thread = ThreadPoolExecutor(max_workers=1)
            self.caches: list[torch.Tensor] = []
            self.slots: dict[int, list[torch.Tensor]] = {}
            self.futures: dict[int, tuple[Job, Future[Any]]] = {}
            self.kept: set[str] = set()
            self.errors: set[int] = set()
            self.report = Report()

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # ---------------------------------------------------------------- worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.caches = list(kv_caches.values())

    def _path(self, slot: int) -> str:
        return os.path.join(self.folder.name, f"{self.rank}-{slot}.pt")

    def _chunk(self, op: Op) -> list[torch.Tensor]:
        return self.slots[op.ram] if op.ram is not None else torch.load(self._path(op.disk))

    def _copy_in(self, ops: list[Op]) -> set[int]:
        """Copy chunks into GPU blocks; which blocks that failed for."""
        failed: set[int] = set()
        for op in ops:
            try:
                chunk = self._chunk(op)
                for cache, kept in zip(self.caches, chunk, strict=False):
                    cache[op.blocks] = kept[op.first : op.first + len(op.blocks)]
            except (OSError, RuntimeError, KeyError, EOFError):
                failed |= set(op.blocks)
        return failed

    def _run(self, job: Job) -> Any:
        if job.kind == "load":
            return self._copy_in(job.ops)
        for op in job.ops:
            if job.kind == "store":
                self.slots[op.ram] = [cache[op.blocks].clone() for cache in self.caches]
            elif job.kind == "spill":
                torch.save(self.slots[op.ram], self._path(op.disk))
            else:
                self.slots[op.ram] = torch.load(self._path(op.disk))
        return set()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        for number in kv_connector_metadata.flush:
            if number in self.futures:
                self.futures[number][1].exception()

    @property
    def _given(self) -> Any:
        return self._get_connector_metadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.errors |= self._copy_in(self._given.loads)

    def wait_for_save(self) -> None:
        for job in self._given.jobs:
            self.futures[job.number] = (job, self.thread.submit(self._run, job))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        received: set[str] = set()
        for number, (job, future) in list(self.futures.items()):
            if not future.done():
                continue
            del self.futures[number]
            self.report.done[number] += 1
            if future.exception() is not None:
                self.report.failed.add(number)
                if job.kind == "load":
                    self.errors |= {block for op in job.ops for block in op.blocks}
            elif job.kind == "load":
                self.errors |= future.result()
            if job.kind == "load":
                received.add(job.request_id)
        self.kept |= self._given.kept
        storing = {job.request_id for job, _ in self.futures.values() if job.kind == "store"}
        sent = self.kept - storing
        self.kept -= sent
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        errors, self.errors = self.errors, set()
        return errors

    def build_connector_worker_meta(self) -> Report | None:
        report, self.report = self.report, Report()
        return report if report.done else None

    def shutdown(self) -> None:
        if self._role == KVConnectorRole.WORKER:
            self.thread.shutdown()
            self.folder.cleanup()

    # ---------------------------------------------------------------- scheduler: lookup and allocation

    def _key(self, request: Any, chunk: int) -> Any:
        """vLLM's hash of a prefix contains the salt, the adapter and pictures."""
        return request.block_hashes[(chunk + 1) * self.chunk_blocks - 1]

    def _chunks_of(self, request: Any, tokens: int) -> int:
        return int(min(tokens // self.block_size, len(request.block_hashes)) // self.chunk_blocks)

    def _found(self, request: Any, computed: int) -> list[Entry]:
        """The chunks from the one with the first token that is not computed."""
        found = []
        for chunk in range(
            computed // (self.block_size * self.chunk_blocks), self._chunks_of(request, request.num_tokens)
        ):
            entry = self.index.get(self._key(request, chunk))
            if entry is None or not entry.ready:
                break
            found.append(entry)
        return found

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        rid, per_chunk = request.request_id, self.block_size * self.chunk_blocks
        self.answers.pop(rid, None)
        found, first = self._found(request, num_computed_tokens), num_computed_tokens // per_chunk
        end = min((first + len(found)) * per_chunk, (request.num_tokens - 1) // self.block_size * self.block_size)
        if not found or end <= num_computed_tokens:
            return 0, False
        found = found[: -(-end // per_chunk) - first]
        on_disk = [entry for entry in found if not entry.in_ram]
        if on_disk and rid not in self.leases and len(on_disk) <= self.most_prefetch:
            self.leases[rid] = found
            self.wanted += on_disk
            for entry in found:
                entry.pins += 1
            return None, False
        if any(entry.filling for entry in self.leases.get(rid, ())):
            return None, False
        self.answers[rid] = num_computed_tokens, found
        return end - num_computed_tokens, bool(on_disk)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        rid = request.request_id
        answer = self.answers.pop(rid, None)
        self._end_lease(rid)
        if not num_external_tokens:
            return
        assert answer is not None
        computed, found = answer
        first, end = computed // self.block_size, (computed + num_external_tokens) // self.block_size
        table, ops = blocks.get_block_ids()[0], []
        of_block: dict[int, Entry] = {}
        for place, entry in enumerate(found, first // self.chunk_blocks):
            start = max(place * self.chunk_blocks, first)
            into = list(table[start : min((place + 1) * self.chunk_blocks, end)])
            ops.append(Op(entry.ram if entry.in_ram else None, entry.disk, start - place * self.chunk_blocks, into))
            of_block |= dict.fromkeys(into, entry)
            entry.pins += 1
        self._touch(found)
        self.loaded[rid] = of_block
        if all(entry.in_ram for entry in found):
            self.meta.loads += ops
            self.step_pins += found
            self.within.add(rid)
        else:
            self._submit("load", rid, ops, found)

    def _end_lease(self, rid: str) -> None:
        for entry in self.leases.pop(rid, ()):
            self._unpin(entry)

    # ---------------------------------------------------------------- scheduler: slots

    def _submit(self, kind: str, rid: str | None, ops: list[Op], entries: list[Entry], table: Any = ()) -> Job:
        """A job; its entries are pinned by the caller, and are unpinned when it has ended."""
        self.numbers += 1
        job = Job(self.numbers, kind, rid, ops)
        self.open[job.number] = Open(job, entries, set(table))
        self.meta.jobs.append(job)
        return job

    def _touch(self, entries: list[Entry]) -> None:
        """Ends of prefixes are to go first."""
        for entry in reversed(entries):
            for tier in (self.ram, self.disk):
                if entry in tier:
                    tier.move_to_end(entry)

    def _unpin(self, entry: Entry) -> None:
        entry.pins -= 1
        if entry.dead and not entry.pins:
            self._give_back(entry)

    def _give_back(self, entry: Entry) -> None:
        if self.ram.pop(entry, self) is None:
            self.free_ram.append(entry.ram)
        if self.disk.pop(entry, self) is None:
            self.free_disk.append(entry.disk)
        entry.ram = entry.disk = None

    def _drop(self, entry: Entry) -> None:
        """Forget a chunk; its slots are free once nobody uses them."""
        if entry.dead:
            return
        entry.dead = True
        if self.index.get(entry.key) is entry:
            del self.index[entry.key]
        if not entry.pins:
            self._give_back(entry)

    def _disk_slot(self, keep: set[Any]) -> int | None:
        if not self.free_disk:
            for entry in self.disk:
                if not entry.pins and entry.key not in keep:
                    if entry.ram is None:
                        self._drop(entry)
                    else:
                        del self.disk[entry]
                        self.free_disk.append(entry.disk)
                        entry.disk = None
                    break
        return self.free_disk.pop() if self.free_disk else None

    def _ram_slot(self, keep: set[Any]) -> int | None:
        """A RAM slot; where none is free, that of the least recently used chunk, which goes to disk."""
        if not self.free_ram:
            for entry in self.ram:
                if entry.pins or not entry.ready or entry.key in keep:
                    continue
                if entry.disk is None:
                    slot = self._disk_slot(keep | {entry.key})
                    if slot is None:
                        self._drop(entry)
                        break
                    entry.disk = slot
                    self.disk[entry] = None
                    entry.pins += 1
                    self._submit("spill", None, [Op(entry.ram, slot)], [entry])
                del self.ram[entry]
                self.free_ram.append(entry.ram)
                entry.ram = None
                break
        return self.free_ram.pop() if self.free_ram else None

    # ---------------------------------------------------------------- scheduler: steps

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        for rid in scheduler_output.preempted_req_ids or ():
            self.meta.flush |= self.stores.pop(rid, set())
            self.states.pop(rid, None)
            if rid not in self.loaded:
                self.stale.discard(rid)
        cached = scheduler_output.scheduled_cached_reqs
        for new in scheduler_output.scheduled_new_reqs:
            self._begin(new.req_id, new.block_ids[0])
        for rid, blocks in zip(cached.req_ids, cached.new_block_ids, strict=False):
            if rid in cached.resumed_req_ids:
                self._begin(rid, blocks[0])
            elif blocks and rid in self.states:
                self.states[rid].blocks += blocks[0]
        computed = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=False))
        self._prefetch()
        for rid, tokens in scheduler_output.num_scheduled_tokens.items():
            if rid in self.states and rid not in self.stale:
                self._store(rid, self.states[rid], computed[rid] + tokens)
        meta, self.meta = self.meta, Meta()
        return meta

    def on_new_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def _begin(self, rid: str, blocks: list[int]) -> None:
        self.states[rid] = State(self.requests[rid], list(blocks))

    def _prefetch(self) -> None:
        wanted, self.wanted = self.wanted, []
        for entry in wanted:
            if entry.dead or entry.ram is not None:
                continue
            slot = self._ram_slot({entry.key})
            if slot is None:
                continue
            entry.ram, entry.filling = slot, True
            self.ram[entry] = None
            entry.pins += 1
            self._submit("prefetch", None, [Op(slot, entry.disk)], [entry])

    def _store(self, rid: str, state: State, tokens: int) -> None:
        """Store what is computed when this step has run, without drafts."""
        request = state.request
        chunks = self._chunks_of(request, min(tokens, request.num_tokens))
        if state.next >= chunks:
            return
        keys = [self._key(request, chunk) for chunk in range(chunks)]
        keep, n = set(keys), self.chunk_blocks
        while state.next < chunks:
            chunk = state.next
            entry = self.index.get(keys[chunk])
            if entry is not None and chunk == 0:
                self._touch([e for e in map(self.index.get, keys) if e is not None])
            if entry is None:
                slot = self._ram_slot(keep)
                if slot is None:
                    return
                entry = self.index[keys[chunk]] = Entry(keys[chunk], slot, pins=1)
                self.ram[entry] = None
                blocks = state.blocks[chunk * n : (chunk + 1) * n]
                job = self._submit("store", rid, [Op(slot, None, 0, blocks)], [entry], state.blocks[: (chunk + 1) * n])
                self.stores.setdefault(rid, set()).add(job.number)
            state.next += 1

    def update_connector_output(self, connector_output: Any) -> None:
        for entry in self.step_pins:
            self._unpin(entry)
        self.step_pins = []
        if invalid := connector_output.invalid_block_ids:
            self._invalid(invalid)
        report = connector_output.kv_connector_worker_meta or Report()
        for number, ranks in report.done.items():
            opened = self.open[number]
            opened.ranks += ranks
            if number in report.failed:
                self._failed(opened.entries)
            if opened.ranks == self.world:
                self._end(number)
        for rid in self.within | set(connector_output.finished_recving or ()):
            self.loaded.pop(rid, None)
        self.within = set()

    def _end(self, number: int) -> None:
        opened = self.open.pop(number)
        kind, rid = opened.job.kind, opened.job.request_id
        for entry in opened.entries:
            if kind == "store":
                entry.ready = True
            elif kind == "prefetch":
                entry.filling = False
            self._unpin(entry)
        if kind == "store" and rid in self.stores:
            self.stores[rid].discard(number)
            if not self.stores[rid]:
                del self.stores[rid]

    def _failed(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._drop(entry)
        for state in self.states.values():  # whoever counted on them stores again
            state.next = 0

    def _invalid(self, blocks: set[int]) -> None:
        """Blocks that failed to load: neither their chunks are any good, nor what was stored from them."""
        bad = [entry for of_block in self.loaded.values() for block, entry in of_block.items() if block in blocks]
        for opened in self.open.values():
            if opened.job.kind == "store" and opened.table & blocks:
                bad += opened.entries
        self._failed(bad)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        rid = request.request_id
        self._end_lease(rid)
        self.answers.pop(rid, None)
        self.states.pop(rid, None)
        self.requests.pop(rid, None)
        self.stale.discard(rid)
        stores = self.stores.pop(rid, None)
        if stores and not block_ids:  # a reset has preempted it in this step
            self.meta.flush |= stores
        elif stores:
            self.meta.kept.add(rid)
        return bool(stores and block_ids), None

    def reset_cache(self) -> bool:
        self.stale |= (self.states.keys() | self.loaded.keys()) & self.requests.keys()
        for rid in list(self.leases):
            self._end_lease(rid)
        self.wanted, self.answers = [], {}
        for entry in list(self.index.values()):
            self._drop(entry)
        return True
