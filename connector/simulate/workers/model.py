"""A made-up model on KV caches in memory. It writes the KV of each step's tokens, and compares, bit by bit, every block that
the step reads and every other block that a running request holds.

A recurrent layer is modelled as in vLLM's mode `align`: a step reads the state after the tokens before it, and writes that
after its own last token into the block of that token; in mode `all`, it also writes the state after the last token of each
block. So a block holds the state after one token, and the number of that token's prefix represents it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """The layout of a KV cache group: tokens per block, and whether a block holds one recurrent state instead of their KV."""

    group: CacheGroup
    size: int
    is_state: bool

    @property
    def slots(self) -> int:
        return tiny_model.STATE_SLOTS if self.is_state else self.size

    def start(self, end: int) -> int:
        """The first token whose KV or state the token at `end` needs."""
        first = self.group.first_needed(end)
        assert first is not None, f"no layer of the tiny model is of kind {self.group.kind}"
        return first

    def slot(self, tokens: Any) -> Any:
        """The slot of each token's KV, or of the state after it, in its block."""
        return tokens * 0 if self.is_state else tokens % self.size

    def left_by_step(self, tokens: Any) -> Any:
        """An index of the step's tokens whose KV or state is kept: all tokens, or for a state only the last one. In vLLM's
        mode `all`, the state after each block's last token is kept as well."""
        if not self.is_state:
            return slice(None)
        if self.group.cache_mode != ALL:
            return slice(-1, None)
        return (tokens % self.size == self.size - 1) | (tokens == tokens[-1:])


@dataclass(frozen=True, slots=True)
class _Read:
    """The tokens of a request whose KV, or the one whose state, must be in its blocks of a KV cache group, with the block and
    the slot of each. `runs`: this step reads them."""

    request: Any
    group: int
    is_state: bool
    tokens: Any
    blocks: Any
    slots: Any
    runs: bool


@dataclass(slots=True)
class _Wrong:
    """The tokens of a request with wrong KV, by layer; the first such token, its block, and what its slot holds."""

    read: _Read
    first: int
    block: int
    holds: str
    tokens: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))


class Model:
    """The model and the KV caches of an engine.

    Attributes:
        ranks: tensor-parallel ranks, each with a part of every layer's heads.
        caches: the KV cache of each layer on each rank, by a name that contains both.
        wrong: a sentence for each wrong read.
        compared: the number of compared blocks that a step reads; all layers of a block count as one.
        loaded: the number of compared loads.
        of_failed: the numbers of prefixes that a step has computed from a failed load.
        copied: whether the connector has ever written to a KV cache.
    """

    def __init__(self, scheduler: Any, calls: Calls, kv_cache: Any, config: Any, shared: Shared) -> None:
        self._scheduler, self._calls = scheduler, calls
        self.ranks: int = config.parallel_config.tensor_parallel_size
        self._layouts = [
            _Layout(group, group.block_size or 1, is_state=group.kind == MAMBA) for group in groups_in(kv_cache, 1)
        ]
        """The layout of each KV cache group."""
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
        """The prefix whose KV each slot of each block should hold."""
        self._given_to = np.zeros(kv_cache.num_blocks, np.int32)
        """The KV cache group that each block was last given to."""
        self._failed_now: set[int] = set()
        """The blocks of loads that have failed since the last step."""
        self._unread: dict[str, Load] = {}
        """The loads of requests that have not run since, by request id."""
        self._awaited: list[tuple[Any, Load]] = []
        """The loads that the workers have not received yet."""
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
        """Begin a step: compare what it reads, and note what it writes. What is computed from a failed load counts as failed.
        `sampled` are the tokens that the step generates for each request; all but the last one are accepted drafts."""
        self._reads.clear()
        self._found = {}
        writes: list[list[Any]] = [[] for _ in self._layouts]
        for request_id, scheduled in output.num_scheduled_tokens.items():
            request = self._scheduler.requests[request_id]
            tables = self._tables(request_id)
            drafts = output.scheduled_spec_decode_tokens.get(request_id, ())
            right = sampled.get(request_id, ())[:-1]
            end = request.num_computed_tokens
            computed = end - scheduled
            numbers = self._prefixes.of(request, [*right, *drafts[len(right) :]])
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
            read_now[read.blocks] = True
            self._compare_numbers(read)
        self.compared += int(read_now.sum())

    def _enter_writes(self, *, states: bool) -> None:
        for group, (layout, (blocks, slots, numbers)) in enumerate(zip(self._layouts, self._writes, strict=False)):
            if layout.is_state is states:
                self._numbers[blocks, slots] = numbers
                self._given_to[blocks] = group

    def run(self, layer: str) -> None:
        """Run a layer: write the KV of the step's tokens, then compare all blocks with what they should hold. A recurrent
        layer is compared first."""
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
        wrong = cache.wrong()
        self.copied = self.copied or cache.is_written_to(wrong)
        if not wrong.any():
            return
        seen = np.zeros_like(wrong)
        for read in (*self._reads, *self._held()):
            if read.group == cache.group:
                seen[read.blocks, read.slots] = True
                self._note(read, wrong[read.blocks, read.slots], [layer])
        self._accept(cache, wrong, seen)

    def end(self) -> None:
        """End a step: all layers have run. Layers overwrite a state in place after they have read it."""
        self._enter_writes(states=True)
        for request_id in {read.request.request_id for read in self._reads} & self._unread.keys():
            del self._unread[request_id]
            self.loaded += 1
        self.wrong += map(self._sentence, self._found.values())

    def copy(self, output: Any) -> None:
        """Copy the blocks that vLLM copies before this step. A request uses a part of such a block, and writes the rest."""
        for source, target in getattr(output, "kv_cache_block_copies", None) or ():  # an older vLLM copies none
            for cache in self.caches.values():
                cache.copy(source, target)
            self._numbers[target] = self._numbers[source]
            self._given_to[target] = self._given_to[source]

    # Loads.

    def received(self, request_ids: Iterable[str], layers: Iterable[str]) -> None:
        """Compare loads that workers report as received: their KV must be in these layers."""
        for request_id in request_ids:
            load, request = self._unread.get(request_id), self._scheduler.requests.get(request_id)
            if load is None or request is None or request.is_finished():
                continue
            self._found = {}
            reads = self._read(request, load.end, runs=False)
            for layer in layers:
                cache = self.caches[layer]
                read, wrong = reads[cache.group], cache.wrong()
                wrong[np.setdiff1d(read.blocks, load.of_groups[cache.group])] = False
                self._note(read, wrong[read.blocks, read.slots], [layer])
            said = f"after the workers had reported the load of {request_id} as received, "
            self.wrong += [said + self._sentence(each) for each in self._found.values()]

    def fail(self, blocks: Collection[int], request_id: str) -> None:
        """Fail a load: overwrite its blocks."""
        self._unread.pop(request_id, None)
        self._failed_now.update(blocks)
        for cache in self.caches.values():
            self._scribble(cache, blocks)

    def _scribble(self, cache: LayerCache, blocks: Iterable[int]) -> None:
        """Overwrite these blocks in one layer, as if their load had failed."""
        at, slots = self._slots(sorted(blocks), cache.slots)
        numbers = np.full(len(at), FAILED, np.int32)
        cache.write(at, slots, numbers)
        self._numbers[at, slots] = numbers

    def expect(self) -> None:
        """Begin the loads of this step: from now on, the contents of their blocks are undefined. Until now, a store could
        still read the old contents."""
        self._failed_now.clear()
        for request, load in self._awaited:
            if not request.is_finished():
                self._expect(request, load)
        self._awaited.clear()

    def _expect(self, request: Any, load: Load) -> None:
        for group, (into, layout) in enumerate(zip(load.of_groups, self._layouts, strict=True)):
            if layout.is_state:
                into, first, tokens = into[-1:], 0, self._prefixes.of(request)[load.end - 1 : load.end]
            else:
                first, tokens = load.start % layout.size, self._prefixes.of(request)[load.start : load.end]
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

    def _slots(self, blocks: Sequence[int], of_each: int) -> tuple[Any, Any]:
        """The block and the slot of each slot of these blocks."""
        return np.repeat(np.array(blocks, np.int64), of_each), np.tile(np.arange(of_each), len(blocks))

    # What is read.

    def _held(self) -> list[_Read]:
        """What running requests hold that this step does not schedule."""
        scheduled = {read.request.request_id for read in self._reads}
        idle = [request for request in self._scheduler.running if request.request_id not in scheduled]
        return [read for each in idle for read in self._read(each, each.num_computed_tokens, runs=False)]

    def _read(self, request: Any, end: int, *, runs: bool) -> list[_Read]:
        """What a request's next token needs, by KV cache group."""
        reads = []
        for group, (layout, table) in enumerate(zip(self._layouts, self._tables(request.request_id), strict=True)):
            tokens = np.arange(layout.start(end), end)
            blocks = table[tokens // layout.size]
            reads.append(_Read(request, group, layout.is_state, tokens, blocks, layout.slot(tokens), runs))
        return reads

    def _tables(self, request_id: str) -> list[Any]:
        return [np.array(table, np.int64) for table in self._scheduler.kv_cache_manager.get_block_ids(request_id)]

    def _compare_numbers(self, read: _Read) -> None:
        """Compare by number: the blocks that the step reads must have been written, or be loaded, for these prefixes."""
        held = self._numbers[read.blocks, read.slots]
        # vLLM 0.32 keeps what a failed load has left, and what was computed of that, in its prefix cache until the request
        # computes it again: for others where the request ends, and for itself where it is preempted.
        wrong = (held != self._prefixes.of(read.request)[read.tokens]) & (held != FAILED)
        self._note(read, wrong, [name for name, cache in self.caches.items() if cache.group == read.group])

    def _accept(self, cache: LayerCache, wrong: Any, seen: Any) -> None:
        """Accept wrong contents, so that they are reported once; those that no read needs yet count as unknown. The blocks of
        open loads stay as they are."""
        wrong[[block for load in self._unread.values() for into in load.of_groups for block in into]] = False
        cache.accept(wrong.any(axis=1))
        wrong[seen] = False
        wrong[self._given_to != cache.group] = False  # the layers of other groups have nothing there
        self._numbers[:, : cache.slots][wrong] = UNKNOWN

    def _note(self, read: _Read, wrong: Any, layers: list[str]) -> None:
        """Note the tokens of a read that are wrong in these layers."""
        tokens = read.tokens[wrong].tolist()
        if not tokens:
            return
        request_id, first = read.request.request_id, int(wrong.argmax())
        if request_id not in self._found:
            held = self.caches[layers[0]].words(read.blocks[first], read.slots[first])
            expected = self._secrets[layers[0]].words(self._prefixes.of(read.request)[tokens[:1]])[0]
            text = holds(held, expected, layers[0], self._secrets, self._prefixes)
            self._found[request_id] = _Wrong(read, tokens[0], int(read.blocks[first]), text)
        for layer in layers:
            self._found[request_id].tokens[layer].update(tokens)

    def _sentence(self, wrong: _Wrong) -> str:
        read = wrong.read
        request_id, load = read.request.request_id, self._calls.loads.get(read.request.request_id)
        count, end = len(read.tokens), read.tokens[-1] + 1
        layers = "all layers" if len(wrong.tokens) == len(self.caches) else ", ".join(wrong.tokens)
        most = max(map(len, wrong.tokens.values()))
        text = f"{request_id} {'reads' if read.runs else 'holds'} "
        if read.is_state:
            text += f"the state after its first {end} tokens, which is wrong in {layers}, in block {wrong.block}:"
        else:
            text += (
                f"the KV of its {f'first {end}' if count == end else f'{count} last of {end}'} tokens. {most} of them"
                f" {'has' if most == 1 else 'have'} wrong KV in {layers}, the first of them token {wrong.first} in block"
                f" {wrong.block}:"
            )
        text += f" it holds {wrong.holds}."
        if load is not None:
            text += f" Tokens {load.start} to {load.end} were to be loaded by the connector."
        return text
