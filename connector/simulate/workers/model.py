"""A made-up model on KV caches in memory. It writes the KV of each step's tokens, and compares, bit by bit, every block
that the step reads, and every other block that a running request holds.

A recurrent layer is modelled as in vLLM's mode `align`: a step reads the state after the tokens before it, and writes that
after its own last token into the block where that token lies; in mode `all` also that after the last token of each block. So
a block holds the state after one token, and the number of that token's prefix stands for all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvtrail.connector.cache_groups import groups_in
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.simulate.calls import Calls, Load
from kvtrail.connector.simulate.tiny_model import HEADS, HIDDEN
from kvtrail.connector.simulate.workers.contents import FAILED, UNKNOWN, UNWRITTEN, LayerCache, Shared, holds
from kvtrail.tracer.events.cache_groups import ALL, MAMBA, CacheGroup


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a KV cache group keeps what: tokens of a block, and whether that holds the state after one of them alone."""

    group: CacheGroup
    size: int
    is_state: bool

    @property
    def slots(self) -> int:
        return tiny_model.STATE_SLOTS if self.is_state else self.size

    def start(self, end: int) -> int:
        """The first token that the one at `end` sees."""
        first = self.group.first_needed(end)
        assert first is not None, f"no layer of the tiny model is of kind {self.group.kind}"
        return first

    def slot(self, tokens: Any) -> Any:
        """Where in its block each token's KV is, or the state after it."""
        return tokens * 0 if self.is_state else tokens % self.size

    def left_by_step(self, tokens: Any) -> Any:
        """Which of a step's tokens leave something: all of them KV, the last one a state. In vLLM's mode `all` each block's
        last one leaves a state as well."""
        if not self.is_state:
            return slice(None)
        if self.group.cache_mode != ALL:
            return slice(-1, None)
        return (tokens % self.size == self.size - 1) | (tokens == tokens[-1:])

    def tokens(self, at: int, end: int) -> Any:
        """The token of each slot of the block at this place, of a request that has `end` of them."""
        return (
            np.array([min((at + 1) * self.size, end) - 1])
            if self.is_state
            else np.arange(at * self.size, (at + 1) * self.size)
        )


@dataclass(frozen=True, slots=True)
class _Read:
    """The KV of a request's tokens [start, end), or the state after the last of them, must be in its blocks of a KV cache
    group, in this layout; `runs`: this step reads it."""

    request: Any
    group: int
    layout: _Layout
    blocks: Any
    start: int
    end: int
    runs: bool

    def of(self, block: int, wrong: Any) -> Iterator[tuple[Any, Any]]:
        """The tokens of a block wherever it is among the request's, and which of its slots are wrong, of those that must be
        right."""
        for at in (self.blocks[: -(-self.end // self.layout.size)] == block).nonzero()[0].tolist():
            tokens = self.layout.tokens(at, self.end)
            yield tokens, wrong & (tokens >= self.start) & (tokens < self.end)


@dataclass(slots=True)
class _Wrong:
    """Tokens of a request with wrong KV: how many in each layer, the first one, its block and what that holds; and the
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
        of_failed: the numbers of prefixes that a step has computed of a load that had failed.
        copied: whether the connector has ever written to a KV cache.
    """

    def __init__(self, scheduler: Any, calls: Calls, kv_cache: Any, config: Any, shared: Shared) -> None:
        self._scheduler, self._calls = scheduler, calls
        self.ranks: int = config.parallel_config.tensor_parallel_size
        self._layouts = [
            _Layout(group, group.block_size or 1, is_state=group.kind == MAMBA) for group in groups_in(kv_cache, 1)
        ]
        """Of each KV cache group."""
        shapes = [
            (kv_cache.num_blocks, HEADS // self.ranks, layout.slots, 2 * HIDDEN // HEADS) for layout in self._layouts
        ]
        self.caches = {
            f"{name} of rank {rank}" if rank else name: LayerCache(
                name, rank, number, shapes[number], shared.seed, is_state=self._layouts[number].is_state
            )
            for rank in range(self.ranks)
            for number, group in enumerate(kv_cache.kv_cache_groups)
            for name in group.layer_names
        }
        self._secrets = {name: cache.secret for name, cache in self.caches.items()}
        self.wrong: list[str] = []
        self.compared = self.loaded = 0
        self.of_failed: set[int] = set()
        self.copied = False
        self._prefixes = shared.prefixes
        slots = max(layout.slots for layout in self._layouts)
        self._numbers = np.full((kv_cache.num_blocks, slots), UNKNOWN, np.int32)
        """The prefix that each slot of each block should hold the KV of."""
        self._given_to = np.zeros(kv_cache.num_blocks, np.int32)
        """The KV cache group that each block was last given to."""
        self._failed_now: set[int] = set()
        """Blocks of the loads that have failed since the last step."""
        self._unread: dict[str, Load] = {}
        """Loads of requests that have not run since."""
        self._awaited: list[tuple[Any, Load]] = []
        """Loads that the workers have not been given yet."""
        self._reads: list[_Read] = []
        self._writes: list[Any] = []
        """The blocks, slots and numbers of the step's tokens, of each KV cache group."""
        self._found: dict[str, _Wrong] = {}
        calls.on_load.append(lambda request, load: self._awaited.append((request, load)))
        calls.on_end.append(
            lambda request: self._unread.pop(request.request_id, None)
        )  # nobody reads its load any more

    # A step.

    def begin(self, output: Any, failed: set[int], sampled: Mapping[str, Sequence[int]]) -> None:
        """What this step reads and writes. What is computed of a load that has failed is scribble. `sampled` are the tokens
        that the step gives each request; all but the last one are drafts that turned out right."""
        self._reads.clear()
        self._found = {}
        writes: list[list[Any]] = [[] for _ in self._layouts]
        for request_id, computed in self._computed(output).items():
            request = self._scheduler.requests[request_id]
            tables = self._tables(request_id)
            drafts = output.scheduled_spec_decode_tokens.get(request_id, ())
            right = sampled.get(request_id, ())[:-1]
            end = computed + output.num_scheduled_tokens[request_id]
            numbers = self._prefixes.array(request, [*right, *drafts[len(right) :]])
            mine, at = numbers[computed:end], np.arange(computed, end)
            of_tables = zip(tables, self._layouts, strict=True)
            if failed and any(
                failed.intersection(table[: -(-computed // layout.size)].tolist()) for table, layout in of_tables
            ):
                self.of_failed.update(mine.tolist())
                mine = np.full_like(mine, FAILED)
            else:
                self._reads += self._read(request, computed, runs=True)
            for table, layout, written in zip(tables, self._layouts, writes, strict=True):
                left = layout.left_by_step(at)
                written.append((table[at[left] // layout.size], layout.slot(at[left]), mine[left]))
        self._writes = [tuple(map(np.concatenate, zip(*written, strict=True))) for written in writes if written]
        self._enter_writes(states=False)  # KV may be read in the step that writes it
        read_now = np.zeros(len(self._numbers), bool)
        for read in self._reads:
            self._compare_numbers(read, read_now)
        self.compared += int(read_now.sum())

    def _enter_writes(self, *, states: bool) -> None:
        for group, (layout, (blocks, slots, numbers)) in enumerate(zip(self._layouts, self._writes, strict=False)):
            if layout.is_state is states:
                self._numbers[blocks, slots] = numbers
                self._given_to[blocks] = group

    def run(self, layer: str) -> None:
        """A layer runs: it writes the KV of the step's tokens, and then reads; a recurrent one reads first. Whether all
        blocks hold what they should."""
        cache = self.caches[layer]
        if self._failed_now:
            self._scribble(cache, self._failed_now)  # layers may be loaded one by one
        if not cache.is_state:
            self._write(cache)
        self._compare(cache, layer)
        if cache.is_state:
            self._write(cache)

    def _write(self, cache: LayerCache) -> None:
        if self._writes:
            cache.write(*self._writes[cache.group])

    def _compare(self, cache: LayerCache, layer: str) -> None:
        differing = cache.differing()
        if not len(differing):
            return
        reads = [read for read in (*self._reads, *self._held()) if read.group == cache.group]
        seen = np.zeros_like(self._numbers, dtype=bool)
        for block in filter(None, differing.tolist()):  # block 0 belongs to nobody
            wrong = cache.wrong_slots(block)
            for read in reads:
                for tokens, mine in read.of(block, wrong):
                    seen[block, : cache.slots] |= mine
                    self._note_some(read, tokens, mine, layer)
        self._accept(cache, differing, seen)

    def end(self) -> None:
        """All layers have run. A state was overwritten in place, after it was read."""
        self._enter_writes(states=True)
        for read in self._reads:
            self.loaded += self._unread.pop(read.request.request_id, None) is not None
        self.wrong += map(self._sentence, self._found.values())

    def checksum(self) -> list[int]:
        """Another one, when anybody has written to the caches."""
        return [cache.checksum() for cache in self.caches.values()]

    def copy(self, output: Any) -> None:
        """Copy the blocks that vLLM copies before this step: a request may use a part of each, and writes the rest."""
        for source, target in getattr(output, "kv_cache_block_copies", None) or ():  # an older vLLM copies none
            for cache in self.caches.values():
                cache.copy(source, target)
            self._numbers[target] = self._numbers[source]
            self._given_to[target] = self._given_to[source]

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
                    for tokens, mine in reads[cache.group].of(block, cache.wrong_slots(block)):
                        self._note_some(reads[cache.group], tokens, mine, layer)
            said = f"after the workers had reported the load of {request_id} as received, "
            self.wrong += [said + self._sentence(each) for each in self._found.values()]

    def fail(self, blocks: Collection[int], request_id: str) -> None:
        """A load fails: its blocks hold scribble."""
        self._unread.pop(request_id, None)
        self._failed_now.update(blocks)
        for cache in self.caches.values():
            self._scribble(cache, blocks)

    def _scribble(self, cache: LayerCache, blocks: Iterable[int]) -> None:
        """A layer of these blocks was not loaded."""
        at, slots = self._slots(sorted(blocks), cache.slots)
        numbers = np.full(len(at), FAILED, np.int32)
        cache.write(at, slots, numbers)
        self._numbers[at, slots] = numbers

    def expect(self) -> None:
        """The loads of this step may begin: what their blocks hold is undefined from now on. Until then a store may still
        have read what they held before."""
        self._failed_now.clear()
        for request, load in self._awaited:
            if not request.is_finished():
                self._expect(request, load)
        self._awaited.clear()

    def _expect(self, request: Any, load: Load) -> None:
        for group, (into, layout) in enumerate(zip(load.of_groups, self._layouts, strict=True)):
            if layout.is_state:
                into, first, tokens = into[-1:], 0, self._prefixes.array(request)[load.end - 1 : load.end]
            else:
                first, tokens = load.start % layout.size, self._prefixes.array(request)[load.start : load.end]
            blocks, slots = self._slots(into, layout.slots)
            numbers = np.full(len(blocks), UNWRITTEN, np.int32)
            numbers[first : first + len(tokens)] = tokens
            awaited = (blocks > 0) & (np.arange(len(blocks)) >= first)  # what no later token sees has no block
            blocks, slots, numbers = blocks[awaited], slots[awaited], numbers[awaited]
            for cache in self.caches.values():
                if cache.group == group:
                    cache.expect(blocks, slots, numbers)
            self._numbers[blocks, slots] = numbers
            self._given_to[blocks] = group
        self._unread[request.request_id] = load

    def _note_copies(self, load: Load) -> None:
        if not self.copied:
            self.copied = any(cache.written(list(load.blocks)) for cache in self.caches.values())

    def _slots(self, blocks: Sequence[int], of_each: int) -> tuple[Any, Any]:
        """The blocks and slots of all that is in these blocks."""
        return np.repeat(np.array(blocks, np.int64), of_each), np.tile(np.arange(of_each), len(blocks))

    # What is read.

    def _computed(self, output: Any) -> dict[str, int]:
        """How many tokens of each scheduled request are computed before this step."""
        steps = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        running = output.scheduled_cached_reqs
        steps |= dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
        return {request_id: steps[request_id] for request_id in output.num_scheduled_tokens}

    def _held(self) -> list[_Read]:
        """What requests hold that do not run in this step."""
        from vllm.v1.request import RequestStatus

        scheduled = {read.request.request_id for read in self._reads}
        held: list[_Read] = []
        for request_id, request in self._scheduler.requests.items():
            if request_id in scheduled:
                continue
            if request.status is RequestStatus.RUNNING:
                end = request.num_computed_tokens
            elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and request_id in self._unread:
                end = self._unread[request_id].start
            else:
                continue
            held += self._read(request, end, runs=False)
        return held

    def _read(self, request: Any, end: int, *, runs: bool) -> list[_Read]:
        """What a request's next token sees, of each KV cache group."""
        tables = self._tables(request.request_id)
        parts = enumerate(zip(self._layouts, tables, strict=True))
        return [_Read(request, group, layout, table, layout.start(end), end, runs) for group, (layout, table) in parts]

    def _tables(self, request_id: str) -> list[Any]:
        return [np.array(table, np.int64) for table in self._scheduler.kv_cache_manager.get_block_ids(request_id)]

    def _compare_numbers(self, read: _Read, read_now: Any) -> None:
        """Whether the blocks that the step reads were written, or are to be loaded, for these prefixes; marks them in
        `read_now`."""
        layout, tokens = read.layout, np.arange(read.start, read.end)
        read_now[read.blocks[read.start // layout.size : -(-read.end // layout.size)]] = True
        if (load := self._unread.get(read.request.request_id)) is not None:
            self._note_copies(load)
        should = self._prefixes.array(read.request)[read.start : read.end]
        blocks = read.blocks[tokens // layout.size]
        held = self._numbers[blocks, layout.slot(tokens)]
        # vLLM 0.32 keeps what a failed load has left, and what was computed of that, in its prefix cache until the request
        # computes it again: for others where the request ends, and for itself where it is preempted.
        wrong = (held != should) & (held != FAILED)
        if wrong.any():
            layers = [name for name, cache in self.caches.items() if cache.group == read.group]
            self._note(read, read.start + int(wrong.argmax()), int(wrong.sum()), layers)

    def _accept(self, cache: LayerCache, differing: Any, seen: Any) -> None:
        """What was found is not found again; what nobody may read yet is not looked at, unless a load is to write it."""
        loading = {block for load in self._unread.values() for into in load.of_groups for block in into}
        over = [block for block in differing.tolist() if block not in loading]
        for block in over:
            if self._given_to[block] != cache.group:
                continue  # the layers of other groups have nothing there
            unread = cache.wrong_slots(block) & ~seen[block, : cache.slots]
            self._numbers[block, : cache.slots][unread] = UNKNOWN
        cache.accept(over)

    def _note_some(self, read: _Read, tokens: Any, wrong: Any, layer: str) -> None:
        if wrong.any():
            self._note(read, int(tokens[wrong.argmax()]), int(wrong.sum()), [layer])

    def _note(self, read: _Read, token: int, tokens: int, layers: list[str]) -> None:
        block, slot = int(read.blocks[token // read.layout.size]), int(read.layout.slot(token))
        held = self.caches[layers[0]].words(block, slot)
        expected = self._secrets[layers[0]].words(self._prefixes.array(read.request)[token : token + 1])[0]
        known = self._found.get(read.request.request_id)
        if known is not None and layers[0] in known.layers and layers != known.layers[-1:]:
            return  # the numbers have shown it
        if known is None or (token < known.first and layers == known.layers):
            text = holds(held, expected, layers[0], self._secrets, self._prefixes)
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
        most = max(wrong.tokens)
        have = "has" if most == 1 else "have"
        text = f"{request_id} {'reads' if read.runs else 'holds'} "
        if read.layout.is_state:
            text += f"the state after its first {read.end} tokens, which is wrong in {layers}, in block {wrong.block}:"
        else:
            text += (
                f"the KV of its {tokens} tokens. {most} of them {have} wrong KV in {layers}, the first of them"
                f" token {wrong.first} in block {wrong.block}:"
            )
        text += f" it holds {wrong.holds}."
        if load is not None:
            text += f" Tokens {load.start} to {load.end} were to be loaded by the connector."
        return text
