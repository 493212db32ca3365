"""A made-up model on KV caches in memory. It writes the KV of each step's tokens, and compares, bit by bit, every block
that the step reads, and every other block that a running request holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from kvtrail.connector.simulate.calls import Calls, Load
from kvtrail.connector.simulate.contents import FAILED, UNKNOWN, UNWRITTEN, Contents, Prefixes, holds
from kvtrail.connector.simulate.kv_caches import LayerCache
from kvtrail.connector.simulate.tiny_model import HEADS, HIDDEN

_SEEDS = count()
"""Each model has secrets of its own, so memory that was never written holds no KV of an earlier one by chance."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The KV of a request's tokens [start, end) must be in its blocks of a KV cache group; `runs`: this step reads it."""

    request: Any
    group: int
    blocks: Any
    start: int
    end: int
    runs: bool

    def of(self, block: int, size: int, wrong: Any) -> Iterator[tuple[int, Any]]:
        """The places of a block among the request's, and which of its tokens are wrong, of those that must be there."""
        for at in (self.blocks[: -(-self.end // size)] == block).nonzero()[0].tolist():
            tokens = np.arange(at * size, (at + 1) * size)
            yield at, wrong & (tokens >= self.start) & (tokens < self.end)


@dataclass(slots=True)
class _Wrong:
    """Tokens of a request whose KV is wrong: how many in each layer, the first one, its block and what that holds; and the
    layers."""

    read: _Read
    tokens: list[int]
    first: int
    block: int
    holds: str
    layers: list[str] = field(default_factory=list)


class Model:
    """The model and the KV caches of an engine.

    Attributes:
        ranks: tensor-parallel ranks, each with a part of every layer's heads.
        caches: of each layer on each rank, by a name that says both.
        wrong: what requests have read that was not theirs, in sentences, each once.
        compared: how many blocks that a step reads were compared, all layers of a block counted as one.
        loaded: how many loads were looked at.
        copied: whether the connector has ever written to a KV cache.
    """

    def __init__(self, scheduler: Any, calls: Calls, kv_cache: Any, config: Any, prefixes: Prefixes) -> None:
        self._scheduler, self._calls, self._block_size = scheduler, calls, config.cache_config.block_size
        self.ranks: int = config.parallel_config.tensor_parallel_size
        shape = (kv_cache.num_blocks, HEADS // self.ranks, self._block_size, 2 * HIDDEN // HEADS)
        self._windows = [getattr(group.kv_cache_spec, "sliding_window", None) for group in kv_cache.kv_cache_groups]
        """Of each KV cache group: how many tokens its layers see; None for all."""
        seed = next(_SEEDS)
        self.caches = {
            f"{name} of rank {rank}" if rank else name: LayerCache(name, rank, number, shape, seed)
            for rank in range(self.ranks)
            for number, group in enumerate(kv_cache.kv_cache_groups)
            for name in group.layer_names
        }
        self._secrets = {name: cache.secret for name, cache in self.caches.items()}
        self.wrong: list[str] = []
        self.compared = self.loaded = 0
        self.copied = False
        self._contents = Contents(prefixes)
        self._numbers = np.full((kv_cache.num_blocks, self._block_size), UNKNOWN, np.int32)
        """The prefix whose KV each slot of each block should hold."""
        self._groups = np.zeros(kv_cache.num_blocks, np.int32)
        """The KV cache group that each block was last given to."""
        self._unread: dict[str, Load] = {}
        """Loads whose request has not run since."""
        self._awaited: list[tuple[Any, Load]] = []
        """Loads of which the workers have not been told yet."""
        self._written: dict[str, int] = {}
        """Up to where each running request's KV is written: drafts that turn out right are written in the next step."""
        self._reads: list[_Read] = []
        self._writes: list[Any] = []
        """The blocks, slots and numbers of the step's tokens, of each KV cache group."""
        self._found: dict[str, _Wrong] = {}
        calls.on_load.append(lambda request, load: self._awaited.append((request, load)))
        calls.on_end.append(self._ended)

    # A step.

    def begin(self, output: Any, failed: set[int]) -> None:
        """What this step reads and writes. What is computed of a load that has failed is scribble."""
        self._reads.clear()
        self._found = {}
        writes: list[list[Any]] = [[] for _ in self._windows]
        for request_id, computed in self._computed(output).items():
            request = self._scheduler.requests[request_id]
            tables = self._tables(request_id)
            numbers = self._contents.of(request)
            start = min(computed, self._written[request_id])
            end = min(computed + output.num_scheduled_tokens[request_id], request.num_tokens)
            mine, at = numbers[start:end], np.arange(start, end)
            before = -(-computed // self._block_size)
            if failed and any(failed.intersection(table[:before].tolist()) for table in tables):
                mine = np.full_like(mine, FAILED)
            else:
                self._reads += self._read(request, start, runs=True)
            for table, written in zip(tables, writes, strict=True):
                written.append((table[at // self._block_size], at % self._block_size, mine))
            self._written[request_id] = end
        self._writes = [tuple(map(np.concatenate, zip(*written, strict=True))) for written in writes if written]
        for group, (blocks, slots, numbers) in enumerate(self._writes):
            self._numbers[blocks, slots] = numbers
            self._groups[blocks] = group
        self._compare_numbers()

    def run(self, layer: str) -> None:
        """A layer runs: it writes the KV of the step's tokens, and then reads. Whether all blocks hold what they should."""
        cache = self.caches[layer]
        if self._writes:
            cache.write(*self._writes[cache.group])
        differing = cache.differing()
        if not len(differing):
            return
        reads = [read for read in (*self._reads, *self._held()) if read.group == cache.group]
        seen = np.zeros_like(self._numbers, dtype=bool)
        for block in filter(None, differing.tolist()):  # block 0 belongs to nobody
            wrong = cache.wrong_slots(block)
            for read in reads:
                for at, mine in read.of(block, self._block_size, wrong):
                    seen[block] |= mine
                    self._note_some(read, at, mine, layer)
        self._accept(cache, differing, seen)

    def end(self) -> None:
        """All layers have run."""
        for read in self._reads:
            if self._unread.pop(read.request.request_id, None) is not None:
                self.loaded += 1
        self.wrong += map(self._sentence, self._found.values())

    def checksum(self) -> list[int]:
        """Another one, when anybody has written to the caches."""
        return [cache.checksum() for cache in self.caches.values()]

    # Loads.

    def received(self, request_ids: Iterable[str], layers: Iterable[str]) -> None:
        """Workers say that these loads have ended: from now on they are in place in these layers."""
        for request_id in request_ids:
            load, request = self._unread.get(request_id), self._scheduler.requests.get(request_id)
            if load is None or request is None or request.is_finished():
                continue
            self._found = {}
            reads = self._read(request, load.end, runs=False)
            self._note_copies(load)
            for layer in layers:
                cache = self.caches[layer]
                for block in np.intersect1d(cache.differing(), load.of_groups[cache.group]).tolist():
                    for at, mine in reads[cache.group].of(block, self._block_size, cache.wrong_slots(block)):
                        self._note_some(reads[cache.group], at, mine, layer)
            said = f"the workers reported the load of {request_id} as received, when it was not in place: "
            self.wrong += [said + self._sentence(each) for each in self._found.values()]

    def fail(self, blocks: Iterable[int], request_id: str) -> None:
        """A load fails: its blocks hold scribble."""
        self._unread.pop(request_id, None)
        at, slots = self._slots(sorted(blocks))
        self._put(at, slots, np.full(len(at), FAILED, np.int32))

    def expect(self) -> None:
        """The loads of this step may begin: what their blocks hold is undefined from now on. Until then a store may still
        have read what they held before."""
        for request, load in self._awaited:
            if not request.is_finished():
                self._expect(request, load)
        self._awaited.clear()

    def _expect(self, request: Any, load: Load) -> None:
        first = load.start % self._block_size
        for group, into in enumerate(load.of_groups):
            blocks, slots = self._slots(into)
            numbers = np.full(len(blocks), UNWRITTEN, np.int32)
            numbers[first : first + load.end - load.start] = self._contents.of(request)[load.start : load.end]
            awaited = (blocks > 0) & (np.arange(len(blocks)) >= first)  # what no later token sees has no block
            blocks, slots, numbers = blocks[awaited], slots[awaited], numbers[awaited]
            for cache in self.caches.values():
                if cache.group == group:
                    cache.expect(blocks, slots, numbers)
            self._numbers[blocks, slots] = numbers
            self._groups[blocks] = group
        self._unread[request.request_id] = load

    def _ended(self, request: Any) -> None:
        """Nobody reads the load of a request that has ended."""
        self._unread.pop(request.request_id, None)

    def _note_copies(self, load: Load) -> None:
        if not self.copied:
            self.copied = any(cache.written(list(load.blocks)) for cache in self.caches.values())

    def _put(self, blocks: Any, slots: Any, numbers: Any) -> None:
        for cache in self.caches.values():
            cache.write(blocks, slots, numbers)
        self._numbers[blocks, slots] = numbers

    def _slots(self, blocks: Sequence[int]) -> tuple[Any, Any]:
        """The blocks and slots of all tokens in these blocks."""
        size = self._block_size
        return np.repeat(np.array(blocks, np.int64), size), np.tile(np.arange(size), len(blocks))

    # What is read.

    def _computed(self, output: Any) -> dict[str, int]:
        """How many tokens of each scheduled request are computed before this step."""
        steps = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        running = output.scheduled_cached_reqs
        self._written |= steps
        steps |= dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
        self._written |= {request_id: steps[request_id] for request_id in running.resumed_req_ids}
        return {request_id: steps[request_id] for request_id in output.num_scheduled_tokens}

    def _held(self) -> list[_Read]:
        """What requests hold that do not run in this step."""
        from vllm.v1.request import RequestStatus

        scheduled = {read.request.request_id for read in self._reads}
        held: list[_Read] = []
        for request_id, request in self._scheduler.requests.items():
            if request_id in scheduled:
                continue
            if request.status is RequestStatus.RUNNING and request_id in self._written:
                end = min(request.num_computed_tokens, self._written[request_id])
            elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and request_id in self._unread:
                end = self._unread[request_id].start
            else:
                continue
            held += self._read(request, end, runs=False)
        return held

    def _read(self, request: Any, end: int, *, runs: bool) -> list[_Read]:
        """What a request's next token sees, of each KV cache group."""
        tables = self._tables(request.request_id)
        starts = [0 if window is None else max(0, end - window + 1) for window in self._windows]
        parts = enumerate(zip(tables, starts, strict=True))
        return [_Read(request, group, table, start, end, runs) for group, (table, start) in parts]

    def _tables(self, request_id: str) -> list[Any]:
        return [np.array(table, np.int64) for table in self._scheduler.kv_cache_manager.get_block_ids(request_id)]

    def _compare_numbers(self) -> None:
        """Whether the blocks that the step reads were written, or are to be loaded, for these prefixes."""
        read_now = np.zeros(len(self._numbers), bool)
        for read in self._reads:
            blocks = read.blocks[: -(-read.end // self._block_size)]
            read_now[blocks[read.start // self._block_size :]] = True
            if (load := self._unread.get(read.request.request_id)) is not None:
                self._note_copies(load)
            numbers = self._contents.of(read.request)[: read.end]
            wrong = self._numbers[blocks].reshape(-1)[: read.end] != numbers
            wrong[: read.start] = False
            if wrong.any():
                layers = [name for name, cache in self.caches.items() if cache.group == read.group]
                self._note(read, int(wrong.argmax()), int(wrong.sum()), layers)
        self.compared += int(read_now.sum())

    def _accept(self, cache: LayerCache, differing: Any, seen: Any) -> None:
        """What was found is not found again; what nobody may read yet is not looked at, unless a load is to write it."""
        loading = {block for load in self._unread.values() for into in load.of_groups for block in into}
        over = [block for block in differing.tolist() if block not in loading]
        for block in over:
            if self._groups[block] != cache.group:
                continue  # the layers of other groups have nothing there
            self._numbers[block, cache.wrong_slots(block) & ~seen[block]] = UNKNOWN
        cache.accept(over)

    def _note_some(self, read: _Read, at: int, wrong: Any, layer: str) -> None:
        if wrong.any():
            self._note(read, at * self._block_size + int(wrong.argmax()), int(wrong.sum()), [layer])

    def _note(self, read: _Read, token: int, tokens: int, layers: list[str]) -> None:
        block, slot = int(read.blocks[token // self._block_size]), token % self._block_size
        held = self.caches[layers[0]].words(block, slot)
        expected = self._secrets[layers[0]].words(self._contents.of(read.request)[token : token + 1])[0]
        known = self._found.get(read.request.request_id)
        if known is not None and layers[0] in known.layers and layers != known.layers[-1:]:
            return  # the numbers have told it
        if known is None or (token < known.first and layers == known.layers):
            text = holds(held, expected, layers[0], self._secrets, self._contents)
            found = _Wrong(read, [0] if known is None else known.tokens, token, block, text, list(layers))
            known = self._found[read.request.request_id] = found
        elif layers != known.layers[-1:]:
            known.layers += layers
            known.tokens.append(0)
        known.tokens[-1] += tokens

    def _sentence(self, wrong: _Wrong) -> str:
        read = wrong.read
        request_id, load = read.request.request_id, self._calls.loads.get(read.request.request_id)
        tokens = f"first {read.end}" if not read.start else f"{read.end - read.start} last of {read.end}"
        layers = "all layers" if len(wrong.layers) == len(self.caches) else ", ".join(wrong.layers)
        text = (
            f"{request_id} {'reads' if read.runs else 'holds'} the KV of its {tokens} tokens."
            f" {max(wrong.tokens)} of them have wrong KV in {layers}, the first of them token {wrong.first} in block"
            f" {wrong.block}: it holds {wrong.holds}."
        )
        if load is not None:
            text += f" Tokens {load.start} to {load.end} were to be loaded by the connector."
        return text
