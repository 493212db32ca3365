"""A second small host cache, of another author: it keeps block tables of its own, holds chunks while they are read, stores
some steps later if configured to, and keeps the blocks of ended requests until then. It is correct; `store_bugs` breaks it.
No name in it says what is temporary."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole

from planted.whole_steps import WholeSteps

Move = tuple[int, int, list[int]]
"""Between a slot, from its n-th block on, and these blocks of the KV cache."""


@dataclass
class Work(KVConnectorMetadata):
    """Of one step: what is read from the store, and for whom if somebody waits; what is written to it, and for whom; and the
    requests that have ended with writes to come."""

    reads: list[Move] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    writes: list[tuple[str, Move]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)


@dataclass
class Entry:
    """A live request: its blocks, how many chunks of it are in the store, the chunks that are read for it, and the step of
    its latest write."""

    request: Any
    table: list[int] = field(default_factory=list)
    done: int = 0
    preempted: int = 0
    reading: list[bytes] = field(default_factory=list)
    wrote: int = -9


class ChunkStore(WholeSteps):
    """`chunk` tokens a chunk, `slots` chunks, `apart`: reads run between steps, `lag`: writes run that many steps later."""

    kvtrail_check_settings = {  # noqa: RUF012
        "chunk": (32, 64, 128), "slots": (10, 24, 400), "apart": (True, False), "lag": (0, 0, 2),
    }  # fmt: skip

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.block: int = vllm_config.cache_config.block_size
        self.chunk: int = extra.get("chunk", 64)
        self.slots: int = extra.get("slots", 24)
        self.apart: bool = extra.get("apart", True)
        self.lag: int = extra.get("lag", 0)
        self.rank: int = vllm_config.parallel_config.rank
        self.step = 0
        # The scheduler's side.
        self.where: OrderedDict[bytes, int] = OrderedDict()
        self.spare = list(range(self.slots))
        self.readers: Counter[bytes] = Counter()
        self.written_at: dict[bytes, int] = {}
        self.live: dict[str, Entry] = {}
        self.work = Work()
        # The worker's side.
        self.caches: list[torch.Tensor] = []
        self.memory: list[torch.Tensor] = []
        self.later: list[tuple[int, str, Move]] = []
        self.arrived: set[str] = set()
        self.ended: set[str] = set()

    # The scheduler's side.

    def names(self, request: Any) -> list[bytes]:
        per = self.chunk // self.block
        return [bytes(each) for each in request.block_hashes[per - 1 :: per]]

    def entry(self, request: Any) -> Entry:
        entry = self.live.get(request.request_id)
        if entry is None or entry.request is not request:
            entry = self.live[request.request_id] = Entry(request)
        return entry

    def is_there(self, name: bytes) -> bool:
        return name in self.where and self.step > self.written_at[name] + self.lag

    def prefix(self, request: Any) -> int:
        """Chunks that can be read, of those before the last token."""
        found = 0
        for name in self.names(request)[: (request.num_tokens - 1) // self.chunk]:
            if not self.is_there(name):
                break
            found += 1
        return found

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        new = max(0, self.prefix(request) * self.chunk - num_computed_tokens)
        return new, bool(new) and self.apart

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        entry = self.entry(request)
        if not num_external_tokens:
            return
        end = self.prefix(request) * self.chunk
        self.read(entry, end - num_external_tokens, end, blocks.get_block_ids()[0])
        if self.apart:
            self.work.waiting.add(request.request_id)

    def read(self, entry: Entry, start: int, end: int, table: list[int]) -> None:
        names = self.names(entry.request)[: end // self.chunk]
        for n in range(start // self.chunk, end // self.chunk):
            first = max(start, n * self.chunk)
            blocks = table[first // self.block : (n + 1) * self.chunk // self.block]
            self.work.reads.append((self.where[names[n]], first % self.chunk // self.block, list(blocks)))
        self.hold(entry, names)
        self.touch(names)

    def hold(self, entry: Entry, names: list[bytes]) -> None:
        entry.reading = names
        self.readers.update(names)

    def let_go(self, entry: Entry) -> None:
        self.readers.subtract(entry.reading)
        entry.reading = []

    def touch(self, names: Iterable[bytes]) -> None:
        """A prefix is used as a whole, its head last: what is evicted is a tail."""
        for name in reversed(list(names)):
            if name in self.where:
                self.where.move_to_end(name)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        self.follow(scheduler_output)
        before = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        running = scheduler_output.scheduled_cached_reqs
        before.update(zip(running.req_ids, running.num_computed_tokens, strict=True))
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            self.write(self.live[request_id], before[request_id], scheduled)
        if not self.apart:
            for entry in self.live.values():
                self.let_go(entry)
        work, self.work = self.work, Work()
        self.step += 1
        return work

    def follow(self, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            self.live[new.req_id].table = list(new.block_ids[0])
        running = output.scheduled_cached_reqs
        for request_id, added in zip(running.req_ids, running.new_block_ids, strict=True):
            if added is not None:
                self.grow(self.live[request_id], list(added[0]), request_id in running.resumed_req_ids)

    def grow(self, entry: Entry, added: list[int], resumed: bool) -> None:
        entry.table = added if resumed else entry.table + added

    def computed(self, before: int, scheduled: int) -> int:
        return (before + scheduled) // self.chunk

    def write(self, entry: Entry, before: int, scheduled: int) -> None:
        if entry.preempted != entry.request.num_preemptions:
            entry.preempted, entry.done = entry.request.num_preemptions, 0
        names = self.names(entry.request)
        now: set[bytes] = set(names)
        for n in range(entry.done, min(self.computed(before, scheduled), len(names))):
            if not self.put(entry, n, names[n], now):
                break
            entry.done = n + 1
        self.touch(names[: entry.done])

    def put(self, entry: Entry, n: int, name: bytes, now: set[bytes]) -> bool:
        """Whether the chunk is in the store, or will be."""
        if name in self.where:
            return True
        if (slot := self.slot(now)) is None:
            return False
        self.where[name], self.written_at[name] = slot, self.step
        self.work.writes.append((entry.request.request_id, (slot, 0, self.blocks(entry, n))))
        entry.wrote = self.step
        return True

    def blocks(self, entry: Entry, n: int) -> list[int]:
        per = self.chunk // self.block
        return list(entry.table[n * per : (n + 1) * per])

    def slot(self, now: set[bytes]) -> int | None:
        """A slot; of the chunk that was used longest ago, of those that are not being read or written, if none is spare."""
        if not self.spare:
            free = (each for each in self.where if self.is_there(each) and not self.readers[each] and each not in now)
            if (victim := next(free, None)) is None:
                return None
            self.spare.append(self.where.pop(victim))
        return self.spare.pop()

    def update_connector_output(self, connector_output: Any) -> None:
        for request_id in connector_output.finished_recving or ():
            if request_id in self.live:
                self.let_go(self.live[request_id])
        if bad := connector_output.invalid_block_ids:
            for entry in list(self.live.values()):
                self.failed(entry, bad)

    def failed(self, entry: Entry, bad: set[int]) -> None:
        """What comes from a block that was not read is computed again."""
        (table,) = self._kv_cache_manager.get_block_ids(entry.request.request_id)  # type: ignore[union-attr]
        first = next((n for n, block in enumerate(table) if block in bad), None)
        if first is None:
            return
        good = first * self.block // self.chunk
        self.let_go(entry)
        self.forget(self.names(entry.request)[good:])
        entry.done = min(entry.done, good)

    def forget(self, names: Iterable[bytes]) -> None:
        for name in names:
            if name in self.where and not self.readers[name]:
                self.spare.append(self.where.pop(name))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        entry = self.live.pop(request.request_id, None)
        if entry is None:
            return False, None
        self.let_go(entry)
        if request.status.name == "FINISHED_ERROR":  # its load has failed, and it has stored what was computed of that
            self.forget(name for name in self.names(request) if self.written_at.get(name) == self.step - 1)
        # What it wrote before a preemption has run since (`handle_preemptions`), and it may be loading, which is reported.
        keeps = self.step <= entry.wrote + self.lag and entry.preempted == request.num_preemptions
        if keeps:
            self.work.ended.add(request.request_id)
        return keeps, None

    def reset_cache(self) -> bool:
        if any(self.readers.values()) or not all(map(self.is_there, self.where)):
            return False
        self.spare += self.where.values()
        self.where.clear()
        for entry in self.live.values():
            entry.done = 0
        return True

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.caches = list(kv_caches.values())
        per = self.chunk // self.block
        self.memory = [torch.zeros((self.slots, per, *each.shape[1:]), dtype=each.dtype) for each in self.caches]

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """The blocks of whoever was preempted are others' from this step on."""
        self.run_writes(before=self.step + 1)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        work = self._get_connector_metadata()
        assert isinstance(work, Work)
        for slot, first, blocks in work.reads:
            for cache, memory in zip(self.caches, self.memory, strict=True):
                cache[blocks] = memory[slot, first : first + len(blocks)]
        self.arrived |= work.waiting
        self.ended |= work.ended

    def wait_for_save(self) -> None:
        work = self._get_connector_metadata()
        assert isinstance(work, Work)
        self.later += [(self.step, request_id, move) for request_id, move in work.writes]
        self.run_writes(before=self.step - self.lag + 1)
        self.step += 1

    def run_writes(self, before: int) -> None:
        due = [each for each in self.later if each[0] < before]
        self.later = [each for each in self.later if each[0] >= before]
        for _, _, (slot, _, blocks) in due:
            for cache, memory in zip(self.caches, self.memory, strict=True):
                memory[slot, : len(blocks)] = cache[blocks]

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Its copies do not fail, but kvtrail makes some fail."""
        return set()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent = self.ended - {request_id for _, request_id, _ in self.later}
        self.ended -= sent
        arrived, self.arrived = self.arrived, set()
        return sent, arrived
