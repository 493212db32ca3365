"""The scheduler's side of the OffloadConnector: which chunks are held, what a lookup matches, what workers copy.

Why the accounting is right: nothing is remembered that could become stale. A lookup always walks the index and always
subtracts the computed tokens that it was asked about. Between the lookup of a scheduling pass and the allocation that
follows it nothing is evicted, because stores are planned at the end of the pass. The block tables are the scheduler's
own. Workers run steps in order, loads before the forward pass and stores after it, so a slot that is given to another
chunk is read for the last time before it is written.

Why nothing is held in vain: a lookup finds a prefix only up to its first missing chunk, so a chunk is held only with all
the chunks before it. A prefix is used as a whole, its head last, and whatever is evicted is the tail of one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice, takewhile
from typing import Any

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.plan import Copy, OffloadPlan

STEPS_AHEAD = 2
"""Steps that may be planned before it is known that a load has failed: vLLM schedules one ahead."""
MOST_UNTOLD = 65_536
"""Evictions that are remembered for a probe."""


class ChunkIndex:
    """Chunk keys -> slots of host memory, numbered from 0, least recently used first. A chunk comes before every chunk of its
    prefix, so what is evicted is never part of a longer prefix that is held."""

    def __init__(self, slots: int) -> None:
        self._slot: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(slots - 1, -1, -1))
        self._in_step: set[bytes] = set()
        """Chunks that this step uses: none of them is evicted in it."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._slot

    def __len__(self) -> int:
        return len(self._slot)

    def keys(self) -> list[bytes]:
        """The keys of all chunks, in no order: the order of use would take twenty times as long."""
        return list(dict.keys(self._slot))

    def longest_prefix(self, keys: Iterable[bytes]) -> int:
        """How many of the keys, from the first on, are held without a gap. Does not count as use."""
        return len(list(takewhile(self._slot.__contains__, keys)))

    def use(self, prefix: Sequence[bytes]) -> list[int]:
        """The slots of a prefix that is held, which becomes the most recently used."""
        for key in reversed(prefix):
            self._slot.move_to_end(key)
        self._in_step.update(prefix)
        return [self._slot[key] for key in prefix]

    def extend(self, keys: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
        """Hold as many of the keys, from the first on, as there is room for. Returns their slots, and the keys of the chunks
        that were evicted for them."""
        held = self.longest_prefix(keys)
        self.use(keys[:held])
        evicted = []
        for key in keys[held:]:
            if not self._free:
                oldest = next(iter(self._slot))
                if oldest in self._in_step:
                    break  # so is every other
                self._free.append(self._slot.pop(oldest))
                evicted.append(oldest)
            self._slot[key] = self._free.pop()
            self._in_step.add(key)
            held += 1
        return self.use(keys[:held]), evicted

    def end_step(self) -> None:
        """From now on the chunks that this step has used may be evicted."""
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
        computed: computed tokens that the last lookup was asked about.
        stored: tokens from its start that were stored in this epoch, or were held already.
        refused: computed tokens when there was no room for the next chunk; 0 if there was.
        epoch: the preemption epoch that `stored` and `refused` belong to.
        blocks: its block table, as of its last step.
    """

    request: Any
    matched: int = 0
    computed: int = 0
    stored: int = 0
    refused: int = 0
    epoch: int = 0
    blocks: list[int] = field(default_factory=list)


class OffloadScheduler:
    """The state of one engine. Every count is in tokens."""

    def __init__(self, config: OffloadConfig, *, drafts: bool) -> None:
        """`drafts`: the engine runs speculative tokens, so a step's last tokens may still be rejected."""
        self._config = config
        self._drafts = drafts
        self._index = ChunkIndex(config.slots)
        self._tracked: dict[str, _Tracked] = {}
        self._plan = OffloadPlan()
        self._evicted: deque[tuple[str, int, int, str | None]] = deque(maxlen=MOST_UNTOLD)
        self._recent: deque[dict[str, list[tuple[int, bytes]]]] = deque(maxlen=STEPS_AHEAD)
        """The chunks that the latest steps stored, by request: where each ends, and its key."""
        self._last: Any = None
        self.last_matched = 0
        """Length of the stored prefix that the last lookup found."""

    def new_tokens(self, request: Any, computed: int) -> int:
        """How many tokens beyond `computed` can be loaded. Asking changes nothing."""
        tracked = self._track(request)
        tracked.matched = self._index.longest_prefix(self._keys(request)) * self._config.chunk_size
        tracked.computed = computed
        self.last_matched, self._last = tracked.matched, request
        return self._loadable(tracked)

    def last_keys(self) -> tuple[str, ...]:
        """Keys of the chunks that the last lookup found."""
        if not self.last_matched:
            return ()
        return tuple(map(short, self._keys(self._last)[: self.last_matched // self._config.chunk_size]))

    def held_keys(self) -> list[bytes]:
        """Keys of all chunks."""
        return self._index.keys()

    def held_bytes(self) -> int:
        """Bytes of all chunks, on each worker."""
        return len(self._index) * self._config.chunk_bytes

    def still_held(self, keys: Sequence[bytes]) -> tuple[str, ...]:
        """Those of these keys whose chunks are held, as they are recorded."""
        return tuple([short(key) for key in keys if key in self._index])

    def admitted(self, request: Any, external: int, block_ids: Sequence[int]) -> None:
        """Plan the load of `external` tokens after the computed ones, into the request's blocks.

        On a full hit the last token is left to be computed, so the last block is loaded whole and its last token is
        written once more by the forward pass, with the same value.
        """
        if external == 0:
            return
        tracked = self._track(request)
        full_hit = tracked.matched >= request.num_tokens
        if external > self._loadable(tracked):
            raise AssertionError(
                f"Mismatch in tokens to load: {external} vs {tracked.matched} (tokens in the cache)"
                f" - {tracked.computed} (tokens in vllm) - {int(full_hit)} (last token of a full hit, computed again)"
                f" for request {request.request_id}"
            )
        size, block = self._config.chunk_size, self._config.block_size
        end = tracked.computed + external
        keys = self._keys(request)[: -(-end // size)]
        slots = self._index.use(keys)
        for n in range(tracked.computed // size, len(keys)):
            start = n * size
            first, last = max(start, tracked.computed), min(start + size, end)
            blocks = tuple(block_ids[first // block : -(-last // block)])
            self._plan.loads.append(
                Copy(
                    request.request_id, first, last - first, slots[n], (first - start) // block, blocks, short(keys[n])
                )
            )

    def end_step(self, scheduler_output: Any) -> OffloadPlan:
        """Plan the stores of this step, and return its plan."""
        self._follow_tables(scheduler_output)
        computed_before = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        running = scheduler_output.scheduled_cached_reqs
        self._recent.append({})
        computed_before.update(zip(running.req_ids, running.num_computed_tokens, strict=True))
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            computed = computed_before[request_id] + (0 if self._drafts else scheduled)
            self._store_up_to(computed, self._tracked[request_id])
        self._index.end_step()
        plan, self._plan = self._plan, OffloadPlan()
        return plan

    def load_failed(self, blocks: Collection[int]) -> None:
        """Blocks could not be loaded. What the latest steps stored from them on, of any request that holds one, was computed
        of garbage: forget it, and store it again when it is computed again."""
        size, block = self._config.chunk_size, self._config.block_size
        for stored in self._recent:
            for request_id, chunks in stored.items():
                tracked = self._tracked.get(request_id)
                if tracked is None:
                    continue
                bad = next((n for n, each in enumerate(tracked.blocks) if each in blocks), None)
                if bad is None:
                    continue
                for end, key in chunks:
                    if end > bad * block and self._index.discard(key):
                        self._evicted.append((short(key), size, self._config.chunk_bytes, None))
                tracked.stored = min(tracked.stored, bad * block // size * size)

    def finished(self, request: Any) -> None:
        """Forget a request; its chunks stay."""
        self._tracked.pop(request.request_id, None)

    def reset(self) -> None:
        """Forget all chunks."""
        self._index.clear()
        self._evicted.clear()
        for tracked in self._tracked.values():
            tracked.stored = tracked.refused = tracked.matched = 0

    def take_evicted(self) -> list[tuple[str, int, int, str | None]]:
        """The chunks that left since the last call: key, tokens and bytes of each, and the request whose chunk is in its
        place."""
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
        per_chunk = self._config.blocks_per_chunk
        return list(islice(request.block_hashes, per_chunk - 1, None, per_chunk))

    def _loadable(self, tracked: _Tracked) -> int:
        """The lookup's contract: max(0, min(h, N - 1) - c); see `kvtrail.tracer.events.contract`."""
        total: int = tracked.request.num_tokens
        return max(0, min(tracked.matched, total - 1) - tracked.computed)

    def _follow_tables(self, output: Any) -> None:
        """Enter the blocks that a step gives to its requests. Every vLLM since 0.20 tells them so; only newer ones give the
        tables themselves."""
        for new in output.scheduled_new_reqs:
            (self._tracked[new.req_id].blocks,) = map(list, new.block_ids)
        running = output.scheduled_cached_reqs
        for n in compress(range(len(running.req_ids)), running.new_block_ids):
            request_id, (blocks,) = running.req_ids[n], running.new_block_ids[n]
            if request_id in running.resumed_req_ids:
                self._tracked[request_id].blocks = list(blocks)
            else:
                self._tracked[request_id].blocks += blocks

    def _store_up_to(self, computed: int, tracked: _Tracked) -> None:
        """Plan the stores of a request's full chunks. What was stored and evicted since is stored again: its KV is at hand,
        and without it what follows could not be found. Where there is no room, the next try comes a chunk later."""
        request, size, block = tracked.request, self._config.chunk_size, self._config.block_size
        if tracked.epoch != request.num_preemptions:
            tracked.epoch, tracked.stored, tracked.refused = request.num_preemptions, 0, 0
        if computed < max(tracked.stored, tracked.refused) + size:
            return
        keys = self._keys(request)[: computed // size]
        if len(keys) * size <= tracked.stored:
            return
        before = self._index.longest_prefix(keys)
        slots, evicted = self._index.extend(keys)
        self._evicted += [(short(key), size, self._config.chunk_bytes, request.request_id) for key in evicted]
        for n in range(tracked.stored // size, before):
            self._plan.present.append(Copy(request.request_id, n * size, size, slots[n], 0, (), short(keys[n])))
        if len(slots) > before:
            for n in range(before, len(slots)):
                blocks = tuple(tracked.blocks[n * size // block : (n + 1) * size // block])
                self._plan.stores.append(Copy(request.request_id, n * size, size, slots[n], 0, blocks, short(keys[n])))
                self._recent[-1].setdefault(request.request_id, []).append(((n + 1) * size, keys[n]))
        tracked.stored, tracked.refused = len(slots) * size, 0
        if len(slots) < len(keys):
            tracked.refused = computed
            self._plan.refused.append((request.request_id, tracked.stored))


def short(key: bytes) -> str:
    """A chunk's key as it is recorded: the end of the hash of its last block."""
    return key[-8:].hex()
