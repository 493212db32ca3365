"""The scheduler's side of the OffloadConnector: which chunks are held, what a lookup matches, what workers copy.

Why the accounting is right: nothing is remembered that could become stale. A lookup always walks the index and always
subtracts the computed tokens that it was asked about. Between the lookup of a scheduling pass and the allocation that
follows it nothing is evicted, because stores are planned at the end of the pass. The block tables are the scheduler's
own. Workers run steps in order, loads before the forward pass and stores after it, so a slot that is given to another
chunk is read for the last time before it is written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.plan import Copy, OffloadPlan


class ChunkIndex:
    """Chunk keys -> slots of host memory, least recently used first. Slots are numbered from 0."""

    def __init__(self, slots: int) -> None:
        self._slot: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(slots - 1, -1, -1))

    def __contains__(self, key: bytes) -> bool:
        return key in self._slot

    def longest_prefix(self, keys: Iterable[bytes]) -> int:
        """How many of the keys, from the first on, are held without a gap. Does not count as use."""
        return len(list(takewhile(self._slot.__contains__, keys)))

    def use(self, key: bytes) -> int:
        """The slot of a chunk that is held, which becomes the most recently used."""
        self._slot.move_to_end(key)
        return self._slot[key]

    def add(self, key: bytes) -> tuple[int, bytes | None]:
        """A slot for a chunk that is not held, and the key of the chunk that was evicted for it, if any."""
        assert key not in self._slot, "a chunk is stored once"
        evicted = None
        if self._free:
            slot = self._free.pop()
        else:
            evicted, slot = self._slot.popitem(last=False)
        self._slot[key] = slot
        return slot, evicted

    def clear(self) -> None:
        """Forget all chunks."""
        self._free.extend(self._slot.values())
        self._slot.clear()


@dataclass(slots=True)
class _Tracked:
    """A live request: vLLM's object, and how much of it was matched, computed and stored.

    Attributes:
        matched: tokens of the longest stored prefix at the last lookup.
        computed: computed tokens that the last lookup was asked about.
        stored: tokens from its start that were stored in this epoch, or were held already.
        epoch: the preemption epoch that `stored` belongs to.
    """

    request: Any
    matched: int = 0
    computed: int = 0
    stored: int = 0
    epoch: int = 0


class OffloadScheduler:
    """The state of one engine. Every count is in tokens."""

    def __init__(self, config: OffloadConfig, *, drafts: bool) -> None:
        """`drafts`: the engine runs speculative tokens, so a step's last tokens may still be rejected."""
        self._config = config
        self._drafts = drafts
        self._index = ChunkIndex(config.slots)
        self._tracked: dict[str, _Tracked] = {}
        self._plan = OffloadPlan()
        self._evicted: list[tuple[str, int, int]] = []
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
        keys = self._keys(request)
        end = tracked.computed + external
        for start in range(tracked.computed // size * size, end, size):
            first, last = max(start, tracked.computed), min(start + size, end)
            blocks = tuple(block_ids[first // block : -(-last // block)])
            key = keys[start // size]
            slot = self._index.use(key)
            self._plan.loads.append(
                Copy(request.request_id, first, last - first, slot, (first - start) // block, blocks, short(key))
            )

    def end_step(self, scheduler_output: Any) -> OffloadPlan:
        """Plan the stores of this step, and return its plan."""
        computed_before = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        running = scheduler_output.scheduled_cached_reqs
        computed_before.update(zip(running.req_ids, running.num_computed_tokens, strict=True))
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            computed = computed_before[request_id] + (0 if self._drafts else scheduled)
            self._store_up_to(computed, self._tracked[request_id], scheduler_output.kv_connector_block_state)
        plan, self._plan = self._plan, OffloadPlan()
        return plan

    def finished(self, request: Any) -> None:
        """Forget a request; its chunks stay."""
        self._tracked.pop(request.request_id, None)

    def reset(self) -> None:
        """Forget all chunks."""
        self._index.clear()
        for tracked in self._tracked.values():
            tracked.stored = tracked.matched = 0

    def take_evicted(self) -> list[tuple[str, int, int]]:
        """The chunks that left since the last call: key, tokens and bytes of each."""
        evicted, self._evicted = self._evicted, []
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
        """The lookup's contract: max(0, min(h, N - 1) - c); see `kvtrail.tracer.model.contract`."""
        total: int = tracked.request.num_tokens
        return max(0, min(tracked.matched, total - 1) - tracked.computed)

    def _store_up_to(self, computed: int, tracked: _Tracked, block_state: Any) -> None:
        request, size, block = tracked.request, self._config.chunk_size, self._config.block_size
        if tracked.epoch != request.num_preemptions:
            tracked.epoch, tracked.stored = request.num_preemptions, 0
        if computed < tracked.stored + size:
            return
        keys = self._keys(request)
        block_ids = None
        while computed >= tracked.stored + size and tracked.stored // size < len(keys):
            start = tracked.stored
            key = keys[start // size]
            tracked.stored += size
            if key in self._index:
                slot = self._index.use(key)
                self._plan.present.append(Copy(request.request_id, start, size, slot, 0, (), short(key)))
                continue
            if block_ids is None:
                (block_ids,) = block_state.get_block_ids(request.request_id)
            slot, evicted = self._index.add(key)
            if evicted is not None:
                self._evicted.append((short(evicted), size, self._config.chunk_bytes))
            blocks = tuple(block_ids[start // block : (start + size) // block])
            self._plan.stores.append(Copy(request.request_id, start, size, slot, 0, blocks, short(key)))


def short(key: bytes) -> str:
    """A chunk's key as it is recorded: enough of it to be unique."""
    return key.hex()[:16]
