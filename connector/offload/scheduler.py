"""The scheduler's side of the OffloadConnector: the held chunks, the matches of lookups, and the workers' copies.

Why the accounting is right: no answer is cached that could become stale. A lookup always walks the index and always subtracts
the computed tokens that it was asked about. Nothing is evicted between the lookup of a scheduling pass and the following
allocation, because stores are planned at the end of the pass. The block tables are the scheduler's own. Workers run steps in
order, loads before the forward pass and stores after it, so the last read of a slot precedes its reuse by another chunk.

Why every held chunk is useful: a lookup finds a prefix only up to its first missing chunk, so a chunk is held only with all
the chunks before it. A use touches the whole prefix, its first chunk last, so evictions remove the tail of a prefix.

Several KV cache groups: a chunk holds the blocks of each group that were available when it was stored. Blocks of a window may
have been freed by then, and a recurrent state exists only where a step ended. So the missing blocks of each chunk are
recorded, and a lookup goes back to the last chunk after which every group has the blocks that the next token sees. Missing
blocks are stored when a later request has them.
"""

from __future__ import annotations

from collections import ChainMap, OrderedDict, deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import compress, dropwhile, islice, takewhile
from typing import Any

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.plan import Copy, OffloadPlan
from kvtrail.tracer.events.cache_groups import FULL, NULL_BLOCK

STEPS_AHEAD = 2
"""Number of steps that may be planned before a failed load is known: vLLM schedules one ahead."""
MAX_PENDING = 65_536
"""Maximum number of evictions remembered for a probe."""


class ChunkIndex:
    """Chunk keys -> slots of host memory, numbered from 0, least recently used first. A chunk comes before every chunk of its
    prefix, so an evicted chunk is never part of a longer held prefix."""

    def __init__(self, slots: int) -> None:
        self._slot: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(slots - 1, -1, -1))
        self._in_step: set[bytes] = set()
        """Chunks that this step uses, which it must not evict."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._slot

    def __len__(self) -> int:
        return len(self._slot)

    def keys(self) -> list[bytes]:
        """The keys of all chunks, unordered: the order of use would take twenty times as long."""
        return list(dict.keys(self._slot))

    def longest_prefix(self, keys: Iterable[bytes]) -> int:
        """The number of consecutive held keys from the first one. Does not count as use."""
        return len(list(takewhile(self._slot.__contains__, keys)))

    def use(self, prefix: Sequence[bytes]) -> list[int]:
        """The slots of a held prefix, which becomes the most recently used."""
        for key in reversed(prefix):
            self._slot.move_to_end(key)
        self._in_step.update(prefix)
        return self.slots(prefix)

    def slots(self, prefix: Sequence[bytes]) -> list[int]:
        """The slots of a held prefix. Does not count as use."""
        return [self._slot[key] for key in prefix]

    def extend(self, keys: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
        """Hold as many of the keys, from the first one, as fit. Returns their slots, and the keys of the chunks that were
        evicted for them. A chunk that is held after a gap, which a failed load leaves, keeps its slot."""
        held = self.longest_prefix(keys)
        self.use(keys[:held])
        evicted = []
        for key in keys[held:]:
            slot = self._slot.pop(key, None)
            if slot is None and not self._free:
                oldest = next(iter(self._slot))
                if oldest in self._in_step:
                    break  # so is every other
                self.discard(oldest)
                evicted.append(oldest)
            self._slot[key] = self._free.pop() if slot is None else slot  # it is now the last one to be evicted
            self._in_step.add(key)
            held += 1
        return self.use(keys[:held]), evicted

    def end_step(self) -> None:
        """Allow the eviction of the chunks that this step has used."""
        self._in_step.clear()

    def discard(self, key: bytes) -> bool:
        """Forget a chunk; returns whether it was held."""
        slot = self._slot.pop(key, None)
        if slot is not None:
            self._free.append(slot)
        return slot is not None

    def clear(self) -> None:
        """Forget all chunks."""
        self._free.extend(self._slot.values())
        self._slot.clear()
        self._in_step.clear()


@dataclass(slots=True)
class _Tracked:
    """A live request: vLLM's object, and how much of it was matched, computed and stored.

    Attributes:
        matched: tokens of the longest stored prefix at the last lookup.
        computed: computed tokens at the last lookup.
        stored: tokens from its start that were stored in this epoch, or were already held.
        refused: computed tokens when the next chunk did not fit; 0 if it did.
        epoch: the preemption epoch that `stored` and `refused` belong to.
        tables: its block tables, one for each KV cache group, as of its last step, including blocks that vLLM has freed
            since.
        loads: the keys of the last chunks loaded for it, in order, and their destination blocks.
    """

    request: Any
    matched: int = 0
    computed: int = 0
    stored: int = 0
    refused: int = 0
    epoch: int = 0
    tables: list[list[int]] = field(default_factory=list)
    loads: list[tuple[bytes, frozenset[int]]] = field(default_factory=list)


class OffloadScheduler:
    """The state of one engine. Every count is in tokens."""

    def __init__(self, config: OffloadConfig, *, drafts: bool) -> None:
        """`drafts`: the engine runs speculative tokens, so a step's last tokens may still be rejected."""
        self._config = config
        self._drafts = drafts
        self._index = ChunkIndex(config.slots)
        self._lacking: dict[int, list[int]] = {}
        """By slot, the number of missing blocks of each group in its chunk: the first ones."""
        self._tracked: dict[str, _Tracked] = {}
        self._plan = OffloadPlan()
        self._evicted: deque[tuple[str, int, int, str | None]] = deque(maxlen=MAX_PENDING)
        self._recent: deque[dict[str, list[tuple[int, bytes]]]] = deque(maxlen=STEPS_AHEAD)
        """The chunks stored by the latest steps, by request: the end and the key of each."""
        self._ended: deque[dict[str, _Tracked]] = deque(({},), maxlen=STEPS_AHEAD)
        """The requests that have ended since. With `kv_load_failure_policy=fail` vLLM ends a request with a failed load
        before it reports which blocks failed."""
        self._last: Any = None
        self.last_matched = 0
        """Length of the stored prefix that the last lookup found."""

    def new_tokens(self, request: Any, computed: int) -> int:
        """The number of tokens beyond `computed` that can be loaded. The lookup does not change the store."""
        tracked = self._track(request)
        tracked.matched = self._longest_hit(request)
        tracked.computed = computed
        self.last_matched, self._last = tracked.matched, request
        return self._loadable(tracked)

    def last_keys(self) -> tuple[str, ...]:
        """Keys of the chunks that the last lookup found."""
        if not self.last_matched:
            return ()
        return tuple(map(short, self._keys(self._last)[: self.last_matched // self._config.chunk_size]))

    def hashes_of(self, request_id: str) -> Sequence[bytes]:
        """The block hashes of a live request."""
        hashes: Sequence[bytes] = self._tracked[request_id].request.block_hashes
        return hashes

    def held_keys(self) -> list[bytes]:
        """Keys of all chunks."""
        return self._index.keys()

    def held_bytes(self) -> int:
        """Bytes of all chunks, on each worker."""
        return len(self._index) * self._config.chunk_bytes

    def still_held(self, keys: Sequence[bytes]) -> tuple[str, ...]:
        """The held keys among these, in recorded form."""
        return tuple([short(key) for key in keys if key in self._index])

    def admitted(self, request: Any, external: int, tables: Sequence[Sequence[int]]) -> None:
        """Plan the load of `external` tokens after the computed ones into the request's new blocks of each KV cache group.

        On a full hit the last token is left to be computed: the last block is loaded completely, and the forward pass
        writes its last token again with the same value.
        """
        tracked = self._track(request)
        for group, table in zip(self._config.groups, tables, strict=True):
            self._give(table[tracked.computed // group.block_size :])
        if external == 0:
            return
        full_hit = tracked.matched >= request.num_tokens
        if external > self._loadable(tracked):
            raise AssertionError(
                f"Mismatch in tokens to load: {external} vs {tracked.matched} (tokens in the cache)"
                f" - {tracked.computed} (tokens in vllm) - {int(full_hit)} (last token of a full hit, computed again)"
                f" for request {request.request_id}"
            )
        size, end = self._config.chunk_size, tracked.computed + external
        keys = self._keys(request)[: -(-end // size)]
        slots = self._index.use(keys)
        if not self._reaches(slots, end):
            raise AssertionError(f"Nothing is held with which request {request.request_id} could go on at token {end}")
        tracked.loads = []
        needed = [group.needed(tracked.computed, end) for group in self._config.groups]
        for n in range(tracked.computed // size, len(keys)):
            begin, until = max(n * size, tracked.computed), min((n + 1) * size, end)
            chunk = Copy(request.request_id, begin, until - begin, slots[n], 0, (), short(keys[n]))
            copies = self._copies(chunk, n, tables, needed)
            self._plan.loads += copies
            tracked.loads.append((keys[n], frozenset(block for copy in copies for block in copy.blocks)))

    def end_step(self, scheduler_output: Any) -> OffloadPlan:
        """Plan the stores of this step, and return its plan."""
        self._follow_tables(scheduler_output)
        computed_before = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        running = scheduler_output.scheduled_cached_reqs
        self._recent.append({})
        self._ended.append({})
        computed_before.update(zip(running.req_ids, running.num_computed_tokens, strict=True))
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            before = computed_before[request_id]
            self._store_up_to(before, before + (0 if self._drafts else scheduled), self._tracked[request_id])
        self._index.end_step()
        plan, self._plan = self._plan, OffloadPlan()
        return plan

    def load_failed(self, blocks: Set[int]) -> None:
        """Handle blocks that could not be loaded. Forget their source chunks, or the request would ask for them forever.
        Chunks that the latest steps stored from these blocks on, for any request that holds one, were computed from invalid
        data: forget them, and store them again when they are recomputed."""
        size = self._config.chunk_size
        known = ChainMap(*self._ended, self._tracked)
        for each in known.values():
            for key, _ in dropwhile(lambda load: blocks.isdisjoint(load[1]), each.loads):
                self._forget(key)
        for stored in self._recent:
            for request_id, chunks in stored.items():
                tracked = known.get(request_id)
                if tracked is None:
                    continue
                bad = [
                    next(n for n, block in enumerate(table) if block in blocks) * group.block_size
                    for group, table in zip(self._config.groups, tracked.tables, strict=True)
                    if not blocks.isdisjoint(table)
                ]
                if not bad:
                    continue
                for end, key in chunks:
                    if end > min(bad):
                        self._forget(key)
                tracked.stored = min(tracked.stored, min(bad) // size * size)

    def _forget(self, key: bytes) -> None:
        if self._index.discard(key):
            self._evicted.append((short(key), self._config.chunk_size, self._config.chunk_bytes, None))

    def finished(self, request: Any) -> None:
        """Forget a request; its chunks are kept, unless they turn out to be computed from a failed load."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is not None:
            self._ended[-1][request.request_id] = tracked

    def reset(self) -> None:
        """Forget all chunks."""
        self._index.clear()
        self._evicted.clear()
        for tracked in self._tracked.values():
            tracked.stored = tracked.refused = tracked.matched = 0

    def take_evicted(self) -> list[tuple[str, int, int, str | None]]:
        """The chunks evicted since the last call: key, tokens and bytes of each, and the request whose chunk replaced it."""
        evicted = list(self._evicted)
        self._evicted.clear()
        return evicted

    def _track(self, request: Any) -> _Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.request is not request:
            tracked = self._tracked[request.request_id] = _Tracked(request)
        return tracked

    def _keys(self, request: Any) -> list[bytes]:
        """Keys of the request's full chunks: the hash that vLLM gave each chunk's last block.

        vLLM chains its block hashes and mixes adapter, multimodal inputs and cache salt into them, so equal keys mean
        equal prefixes of the same kind.
        """
        hashes = self._config.chunk_size // self._config.hash_size
        return list(islice(request.block_hashes, hashes - 1, None, hashes))

    def _longest_hit(self, request: Any) -> int:
        """The longest held prefix after which all groups have the blocks that the next token sees. If layers see only the end
        of a prefix, it ends with a chunk, and before the last token, which must be computed."""
        size, keys = self._config.chunk_size, self._keys(request)
        held = self._index.longest_prefix(keys)
        if self._config.sees_all:
            return held * size
        held = min(held, (request.num_tokens - 1) // size)
        slots = self._index.slots(keys[:held])
        return next((n * size for n in range(held, 0, -1) if self._reaches(slots, n * size)), 0)

    def _reaches(self, slots: Sequence[int], boundary: int) -> bool:
        """Whether these chunks hold all blocks that a token at `boundary` sees."""
        size = self._config.chunk_size
        for number, group in enumerate(self._config.groups):
            if group.cache.kind == FULL:
                continue  # in such a group no chunk has missing blocks
            per_chunk, rows = size // group.block_size, self._config.rows[number]
            needed = group.needed(0, boundary)
            for n in range(needed.start // per_chunk, -(-needed.stop // per_chunk)):
                first = max(needed.start - n * per_chunk, 0) - (per_chunk - rows)
                if first < self._lacking[slots[n]][number]:
                    return False
        return True

    def _loadable(self, tracked: _Tracked) -> int:
        """The lookup's contract: max(0, min(h, N - 1) - c); see `kvtrail.tracer.events.contract`."""
        total: int = tracked.request.num_tokens
        return max(0, min(tracked.matched, total - 1) - tracked.computed)

    def _follow_tables(self, output: Any) -> None:
        """Enter the blocks that a step adds to its requests. Every vLLM since 0.20 passes them in this form; only newer ones
        pass the tables themselves."""
        for new in output.scheduled_new_reqs:
            self._tracked[new.req_id].tables = list(map(list, new.block_ids))
        running = output.scheduled_cached_reqs
        for n in compress(range(len(running.req_ids)), running.new_block_ids):
            request_id, added = running.req_ids[n], running.new_block_ids[n]
            tracked = self._tracked[request_id]
            if request_id in running.resumed_req_ids:
                tracked.tables = list(map(list, added))
            else:
                for table, blocks in zip(tracked.tables, added, strict=True):
                    table += blocks
                    self._give(blocks)

    def _give(self, blocks: Sequence[int]) -> None:
        """Note that vLLM has allocated these blocks to a request for writing."""
        if self._config.load_async:
            self._plan.given.update(blocks)

    def _store_up_to(self, before: int, computed: int, tracked: _Tracked) -> None:
        """Plan the stores of a request's full chunks, in a step from `before` to `computed` tokens. Chunks that were stored
        and evicted since are stored again: without them, later chunks could not be found. If the store is full, the next try
        is a chunk later."""
        request, size = tracked.request, self._config.chunk_size
        if tracked.epoch != request.num_preemptions:
            tracked.epoch, tracked.stored, tracked.refused = request.num_preemptions, 0, 0
        if computed < max(tracked.stored, tracked.refused) + size:
            return
        keys = self._keys(request)[: computed // size]
        if len(keys) * size <= tracked.stored:
            return
        held = self._index.longest_prefix(keys)
        slots, evicted = self._index.extend(keys)
        self._evicted += [(short(key), size, self._config.chunk_bytes, request.request_id) for key in evicted]
        self._lacking |= {slot: list(self._config.rows) for slot in slots[held:]}
        at_hand = [group.at_hand(before, computed) for group in self._config.groups]
        for n in range(min(held, tracked.stored // size), len(slots)):
            chunk = Copy(request.request_id, n * size, size, slots[n], 0, (), short(keys[n]))
            copies = self._copies(chunk, n, tracked.tables, at_hand, lacking=self._lacking[slots[n]])
            (self._plan.stores if n >= held else self._plan.present).extend(copies)
            if n >= held or copies[0].blocks:
                self._recent[-1].setdefault(request.request_id, []).append(((n + 1) * size, keys[n]))
        tracked.stored, tracked.refused = len(slots) * size, 0
        if len(slots) < len(keys):
            tracked.refused = computed
            self._plan.refused.append((request.request_id, tracked.stored))

    def _copies(
        self,
        chunk: Copy,
        number: int,
        tables: Sequence[Sequence[int]],
        places: Sequence[range],
        lacking: list[int] | None = None,
    ) -> list[Copy]:
        """The copies of a request's chunk with this `number`: one for each group with blocks at these positions of the block
        tables, or one without blocks. A store copies missing blocks (`lacking`), and updates that record."""
        copies = []
        for each, group in enumerate(self._config.groups):
            per_chunk, rows = self._config.chunk_size // group.block_size, self._config.rows[each]
            end = (number + 1) * per_chunk
            first = max(places[each].start, end - rows)
            last = min(places[each].stop, end)
            if lacking is not None:
                last = min(last, end - rows + lacking[each])
            first = max([first, *(n + 1 for n in range(first, last) if tables[each][n] == NULL_BLOCK)])
            if first < last:
                blocks = tuple(tables[each][first:last])
                copies.append(replace(chunk, first=first - (end - rows), blocks=blocks, group=each))
                if lacking is not None:
                    lacking[each] = first - (end - rows)
        return copies or [chunk]


def short(key: bytes) -> str:
    """A chunk's key in recorded form: the end of the hash of its last block."""
    return key[-8:].hex()
