"""The parts of a prompt: the cause of each block, from the known state of the caches at one moment. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress, count, islice, pairwise
from operator import is_not
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from kvtrail.tracer.causes.cache_model import BlockChange, BlockState, CacheModel, Key
from kvtrail.tracer.causes.hybrid_groups import HybridGroups
from kvtrail.tracer.causes.request_state import HandedOver
from kvtrail.tracer.model.causes import NOTHING, PEER, Cause, Detail, NotRecorded, Part

MAX_PARTS = 200
"""Maximum number of parts of a prompt; beyond that, adjacent parts with the same cause and tier are merged and keep the first
part's explanation."""


class AdmissionContext(Struct, eq=False):
    """An admission of a request.

    Attributes:
        total: its tokens.
        computed: tokens that vLLM's own cache held.
        possible: tokens that it may have held, if the state of a recurrent group is unknown.
        sources: tokens that the connector was to load, by tier, if it names tiers.
        block_size: number of tokens in a block.
        chain: the hashes of its full blocks; None if unknown, which `not_recorded` explains.
        pending: number of blocks of the prompt that running requests have in common and still compute.
        begun: number of blocks that all of these requests have computed: with several KV cache groups they may be lost again.
        pending_by: the request that computes the most of them, and its admission.
        shadow: why requests with unknown prompts may be computing; None if there are none.
        groups: the KV cache groups, if there are several and the needs of a hit are known for each.
        has_groups: whether there are several groups with unknown needs: only the first group's blocks are known.
        promised: tokens that an earlier, failed load of this epoch should have loaded.
        promised_by: the tier that they should have been loaded from.
        handed: the hand-off from another engine, if there is one.
    """

    total: int
    computed: int
    sources: Sequence[tuple[str, int]]
    block_size: int
    chain: Sequence[bytes] | None
    not_recorded: NotRecorded = NotRecorded.BLOCK_HASHES
    pending: int = 0
    begun: int = 0
    pending_by: BlockChange | None = None
    shadow: NotRecorded | None = None
    groups: HybridGroups | None = None
    has_groups: bool = False
    possible: int = 0
    promised: tuple[int, int] = (0, 0)
    promised_by: str = ""
    handed: HandedOver | None = None
    failed: BlockChange | None = None


class Store(Struct, eq=False):
    """A connector's store at the lookup.

    Attributes:
        cache: its reported changes.
        chunk_size: number of tokens in its chunks.
        matched: the prefix that it held, according to the connector.
        offered: the tokens that it offered after the tokens that vLLM held.
        was_deferred: whether it had answered 'ask me later' before.
        groups: the groups of its chunks, with several KV cache groups.
        is_reported: whether all its changes are reported, in chunks of whole blocks.
        why: why not all changes are reported, if so.
        takes: whether this connector reads the request's hand-off.
        is_guarded: whether the guard replaced the connector's offer.
        first: the number of the prompt's first chunk that vLLM did not hold completely.
        blocks: number of blocks in a chunk.
        states: the states of all full chunks from this one on.
        last: the last chunk, if the store has the whole prompt and it ends with this chunk; a hit ends before its last token.
        reach: number of blocks up to which everything is held, so that they could have been offered.
    """

    cache: CacheModel
    is_reported: bool
    chunk_size: int
    matched: int | None
    offered: int
    was_deferred: bool
    groups: HybridGroups | None = None
    why: NotRecorded = NotRecorded.PROBE
    takes: bool = False
    is_guarded: bool = False
    first: int = 0
    blocks: int = 1
    states: list[BlockChange | None] = []
    last: BlockChange | None = None
    reach: int = 0

    def state(self, block: int) -> BlockChange | None:
        """The last event of the chunk with this block; None: the store never had it, or the prompt ends within the chunk."""
        at = block // self.blocks - self.first
        return self.states[at] if 0 <= at < len(self.states) else None

    def is_partial(self, block: int) -> bool:
        """Whether the prompt ends within the chunk with this block."""
        return block // self.blocks - self.first >= len(self.states)


class _Reason(NamedTuple):
    """The reason for a run of tokens, as in a part."""

    cause: Cause
    tier: str = ""
    detail: Detail = NOTHING


def _explained(
    cause: Cause, tier: str, change: BlockChange | None, *, unstored: str = "", refusal: str = ""
) -> _Reason:
    """A reason with the last event of the blocks, if known."""
    at_ns, span_id, by = (0, "", "") if change is None else (change.at_ns, change.span_id, change.by)
    return _Reason(cause, tier, Detail("", at_ns, span_id, by, unstored=unstored, refusal=refusal))


_NEW, _UNALIGNED = _Reason(Cause.NEW), _Reason(Cause.UNALIGNED)
_UNKNOWN = {why: _Reason(Cause.UNKNOWN, detail=Detail(why=why)) for why in NotRecorded}


class Attribution:
    """Splits one prompt."""

    def __init__(
        self, context: AdmissionContext, vllm: CacheModel, stores: Sequence[Store], is_fresh: Callable[[Key], bool]
    ) -> None:
        self._context, self._vllm, self._is_fresh = context, vllm, is_fresh
        self._chain = context.chain or ()
        self._hole = context.computed // context.block_size if context.block_size else 0
        """The first block that vLLM's lookup did not find."""
        self._unit = context.groups.unit // context.block_size if context.groups else 1
        """Number of blocks that a lookup finds together or not at all."""
        self._full = context.total // context.block_size if context.block_size else 0
        self._full -= self._full % self._unit
        self._stores = stores
        for store in stores:
            self._look_into(store)
        self._found: list[tuple[_Reason, int, int]] = []
        """The runs so far: the reason, the first token, and the token after the last."""

    def parts(self) -> list[Part]:
        """The parts, in order."""
        asked, size = self._context, self._context.block_size
        if asked.computed:
            self._add(_Reason(Cause.HELD, self._vllm.name), 0, asked.computed)
        end = asked.computed
        for tier, tokens in asked.sources:
            self._add(_Reason(Cause.LOADED, tier), end, min(end + tokens, asked.total - 1))
            end += tokens
        if asked.sources and end == asked.total:
            self._add(_Reason(Cause.LAST_TOKEN, asked.sources[-1][0]), asked.total - 1, asked.total)
        aligned = self._full * size
        if asked.chain is None or len(asked.chain) < self._full or not size:
            aligned = aligned if size else asked.total
            self._add(_UNKNOWN[asked.not_recorded], end, aligned)
        elif end < aligned:
            if end < asked.possible:
                begin, end = end, self._end_of_doubt()
                self._add(_UNKNOWN[self._vllm.why], begin, end)
            if end < aligned:
                self._blocks(end)
        tail = max(end, aligned)
        self._add(self._tail(tail), tail, asked.total)
        return self._joined()

    def _add(self, reason: _Reason, start: int, end: int) -> None:
        """Enter tokens; adjacent tokens with the same reason form one run."""
        if end <= start:
            return
        found = self._found
        if found and found[-1][0] == reason:
            start = found.pop()[1]
        found.append((reason, start, end))

    def _joined(self) -> list[Part]:
        made: list[Part] = []
        are_many = len(self._found) > MAX_PARTS
        for (cause, tier, detail), start, end in self._found:
            if are_many and made and (made[-1].cause, made[-1].tier) == (cause, tier):
                made[-1] = Part(cause, tier, made[-1].start, end - made[-1].start, made[-1].detail)
            else:
                made.append(Part(cause, tier, start, end - start, detail))
        return made

    def _tail(self, start: int) -> _Reason:
        """The reason for the tokens after the last full block. Another engine hands them over too, except the last one."""
        asked = self._context
        if start < asked.total - 1 and self._is_promised(start) and asked.handed is not None:
            return _explained(Cause.FAILED_LOAD, asked.promised_by, asked.failed)
        if start < asked.total - 1 and self._is_handed(asked.total):
            return self._refused_handed(start)
        return _UNALIGNED

    def _end_of_doubt(self) -> int:
        """The end of the tokens of unknown cause, since a state is unknown: the longest possible hit, and the final block
        after it, which no hit includes."""
        asked, unit = self._context, self._unit * self._context.block_size
        return asked.total if asked.total - asked.possible == unit else asked.possible

    def _look_into(self, store: Store) -> None:
        asked = self._context
        if not store.is_reported or asked.chain is None:
            return
        store.blocks = store.chunk_size // asked.block_size
        store.first = self._hole // store.blocks
        reach = self._full
        if store.groups is not None:
            ends_early = store.groups.ends_early
            store.first = 0 if ends_early else store.first
            chunks = (store.first, max(store.first, self._full // store.blocks))
            given = (store.cache, self._chain, asked.block_size, chunks, self._is_fresh)
            store.states = store.groups.states(*given, begin=store.first)
            if ends_early and chunks[1] * store.chunk_size == asked.total:
                if all(fact is not None and fact.state is BlockState.HELD for fact in store.states):
                    store.last = store.states[-1]
                store.states = store.groups.states(*given, is_cut=True)
                reach -= store.blocks
        else:
            ends = slice((store.first + 1) * store.blocks - 1, self._full, store.blocks)
            store.states = store.cache.states(self._chain[ends], self._is_fresh)
        held = 0
        for fact in store.states:
            if fact is None or fact.state is not BlockState.HELD:
                break
            held += 1
        store.reach = (store.first + held) * store.blocks
        if store.was_deferred:
            _doubt(store.states, held)
        if store.matched is not None and store.matched // asked.block_size < min(store.reach, reach):
            self._shorten(store, store.matched // asked.block_size)

    def _shorten(self, store: Store, matched: int) -> None:
        """The store counts from the prompt's beginning, and matched fewer blocks than it holds after vLLM's: it lacks one of
        vLLM's blocks, or looked before it held them and answered later, or its reports are wrong."""
        cache = store.cache
        before = cache.states(self._chain[store.blocks - 1 : store.first * store.blocks : store.blocks], self._is_fresh)
        states = {BlockState.ABSENT if fact is None else fact.state for fact in before}
        if store.was_deferred and states <= {BlockState.HELD}:
            return
        if states <= {BlockState.HELD, BlockState.UNSURE}:
            first = max(0, matched // store.blocks - store.first)
            store.states[first:] = [
                _CONTRADICTED if fact is not None and fact.state is BlockState.HELD else fact
                for fact in store.states[first:]
            ]
        store.reach = matched

    def _blocks(self, begin: int) -> None:
        """Enter the full blocks after the reused ones."""
        asked, size = self._context, self._context.block_size
        first = begin // size
        facts = self._in_vllm(first)
        final = asked.total - self._unit * size if self._full * size == asked.total else asked.total
        last_chunk = next(  # if only the rule prevented a hit on its blocks
            (store for store in self._stores if store.last is not None and begin >= asked.total - store.chunk_size),
            None,
        )
        by_rule = (
            None
            if last_chunk is None or begin >= final
            else _explained(Cause.LAST_TOKEN, last_chunk.cache.name, last_chunk.last)
        )
        for block, end in self._stretches(facts, first):
            fact, start = facts[block - first], max(begin, block * size)
            if begin >= final and (reason := self._last_token(block, fact, begin)) is not None:
                self._add(reason, begin, asked.total)  # with all remaining tokens
                return
            self._add(by_rule or self._block(block, fact, start, end * size), start, end * size)

    def _in_vllm(self, first: int) -> Sequence[BlockChange | None]:
        """The known facts about vLLM's cache, for each block from this one on."""
        asked, unit = self._context, self._unit
        if asked.groups is None:
            return self._vllm.states(self._chain[first : self._full], self._is_fresh)
        units = (first // unit, self._full // unit)
        is_cut = self._full * asked.block_size == asked.total
        states = asked.groups.states(self._vllm, self._chain, asked.block_size, units, self._is_fresh, is_cut=is_cut)
        return [state for state in states for _ in range(unit)][first % unit :]

    def _stretches(self, facts: Sequence[BlockChange | None], first: int) -> Iterator[tuple[int, int]]:
        """The first block and the end of each run of full blocks with the same facts, starting with the first block that was
        not reused: a long prompt has few runs. `facts` are those of vLLM's cache."""
        asked, size = self._context, self._context.block_size
        ends = {
            first + 1,
            self._full - self._unit,
            self._full,
            self._hole,
            self._hole + self._unit,
            asked.pending,
            asked.begun,
        }
        ends.update(-(-tokens // size) for tokens in asked.promised)
        if asked.handed is not None and asked.handed.tokens:
            ends.add(asked.handed.tokens // size)
        ends.update(first + n for n in _changes(facts))
        for store in self._stores:
            ends.update((store.reach, -(-(asked.computed + store.offered) // size)))
            ends.update((store.first + n) * store.blocks for n in (0, *_changes(store.states), len(store.states)))
        if asked.shadow is not None:
            ends.update(first + n for n in _changes(list(map(self._is_fresh, self._chain[first : self._full]))))
        return pairwise((first, *sorted(end for end in ends if first < end <= self._full)))

    def _last_token(self, block: int, fact: BlockChange | None, begin: int) -> _Reason | None:
        """The reason for the final block, if only the rule about the last token prevented a hit on it; otherwise None."""
        asked = self._context
        if begin == asked.total - 1 and asked.sources:  # by rule, a load ends there
            return _Reason(Cause.LAST_TOKEN, asked.sources[-1][0])
        if fact is not None and fact.state is BlockState.HELD:
            return None if asked.has_groups else _explained(Cause.LAST_TOKEN, self._vllm.name, fact)
        if fact is not None and fact.state is BlockState.UNSURE:
            return None  # vLLM may hold it, too
        for store in self._stores:
            chunk = store.state(block)
            if chunk is not None and chunk.state is BlockState.HELD:
                return _explained(Cause.LAST_TOKEN, store.cache.name, chunk)
        return None

    def _block(self, block: int, fact: BlockChange | None, start: int, end: int) -> _Reason:
        """The reason for a block, and for the following ones with the same facts: the first one that applies."""
        vllm, asked = self._vllm, self._context
        was_handed = asked.handed is not None and (self._is_handed(end) or self._is_promised(start))
        is_new = fact is None and block >= asked.pending and not was_handed
        # A store may hold, or may have held, a block that was never in vLLM's cache.
        if (
            is_new
            and not any(store.is_reported and store.state(block) is not None for store in self._stores)
            and not self._is_shadowed(block)
        ):
            return _NEW
        if fact is not None and fact.state is BlockState.HELD:
            if asked.has_groups:
                return _UNKNOWN[NotRecorded.GROUPS]
            return _explained(Cause.REFUSED if block == self._hole else Cause.STRANDED, vllm.name, fact)
        chunks = [(store, store.state(block)) for store in self._stores]
        may_be_in_vllm = fact is not None and fact.state is BlockState.UNSURE
        for store, chunk in chunks:
            if may_be_in_vllm and store.groups is not None:
                continue
            if chunk is not None and chunk.state is BlockState.HELD and block >= store.reach:
                return _explained(Cause.STRANDED, store.cache.name, chunk)
        known = [each for each in chunks if not (was_handed and each[0].takes and not each[0].is_reported)]
        if (why := self._may_be_held(block, fact, known)) is not None:
            return _UNKNOWN[why]
        if asked.begun <= block < asked.pending:
            return _explained(Cause.PENDING, vllm.name, asked.pending_by)
        for store, chunk in chunks:
            if chunk is not None and chunk.state is BlockState.STORING:
                return _explained(Cause.PENDING, store.cache.name, chunk)
        for store, chunk in chunks:
            if chunk is not None and chunk.state is BlockState.HELD:
                return _explained(Cause.REFUSED, store.cache.name, chunk, refusal=self._refusal(store, start))
        if self._is_promised(start):
            return _explained(Cause.FAILED_LOAD, asked.promised_by, asked.failed)
        return self._refused_handed(start) if self._is_handed(end) else self._lost(block, fact, chunks)

    def _is_promised(self, start: int) -> bool:
        """Whether an earlier load of it failed."""
        return self._context.promised[0] <= start < self._context.promised[1]

    def _is_handed(self, end: int) -> bool:
        """Whether all tokens up to there were handed over to the request, except its last token, which is always computed."""
        handed, total = self._context.handed, self._context.total
        return handed is not None and bool(handed.tokens) and min(end, total - 1) <= (handed.tokens or 0)

    def _refused_handed(self, start: int) -> _Reason:
        """The reason for handed-over tokens that the connector did not offer, or vLLM did not use."""
        asked = self._context
        taking = next((store for store in self._stores if store.takes), None)
        refusal = "" if taking is None else self._refusal(taking, start)
        return _explained(Cause.REFUSED, PEER, None if asked.handed is None else asked.handed.fact, refusal=refusal)

    def _refusal(self, store: Store, start: int) -> str:
        """Why tokens that a store held were not loaded."""
        if store.is_guarded:
            return "guarded"
        if start < self._context.computed + store.offered:
            return "untaken"
        if store.offered:
            return "capped"
        return "given-up" if store.was_deferred else "declined"

    def _may_be_held(
        self, block: int, fact: BlockChange | None, chunks: Sequence[tuple[Store, BlockChange | None]]
    ) -> NotRecorded | None:
        """Why it is unknown whether a cache holds it; None if it is known."""
        is_hole = block == self._hole and (block + 1) * self._context.block_size < self._context.total
        # The lookup itself shows that vLLM does not hold the missing block.
        if fact is not None and fact.state is BlockState.UNSURE and not is_hole:
            return self._vllm.why
        for store, chunk in chunks:
            if not store.is_reported:
                return store.why
            if chunk is not None and chunk.state is BlockState.UNSURE:
                return NotRecorded.CONTRADICTION if chunk is _CONTRADICTED else store.cache.why
        return self._context.shadow if self._is_shadowed(block) else None

    def _is_shadowed(self, block: int) -> bool:
        """Whether an unknown request may be computing a block."""
        return self._context.shadow is not None and not self._is_fresh(self._chain[block])

    def _lost(
        self, block: int, fact: BlockChange | None, chunks: Sequence[tuple[Store, BlockChange | None]]
    ) -> _Reason:
        """The reason for a block that no cache holds: it names the cache that lost the block last."""
        losses = [] if fact is None else [(self._vllm, fact)]
        parts: list[tuple[CacheModel, BlockChange]] = []
        unstored = ""
        for store, chunk in chunks:
            if chunk is None:
                unstored = "partial" if store.is_partial(block) else "unasked"
            elif chunk.state is BlockState.UNCACHED:
                unstored, parts = "unasked", [*parts, (store.cache, chunk)]
                continue
            elif chunk.state in _UNSTORED:
                unstored = _UNSTORED[chunk.state]
                chunk = None if chunk.before is None else store.cache.now(chunk.before)
            if chunk is not None:
                losses.append((store.cache, chunk))
        losses = losses or parts
        for cache, loss in losses:
            if loss.state in (BlockState.ABSENT, BlockState.UNSURE):
                return _UNKNOWN[cache.why]
        if not losses:
            return _NEW
        cache, loss = max(losses, key=lambda each: each[1].number)
        if loss.state not in _CAUSES:  # a chunk that is held was not stored
            return _UNKNOWN[NotRecorded.CONTRADICTION]
        if sum(other.number == loss.number for _, other in losses) > 1:
            return _UNKNOWN[NotRecorded.ORDER]
        unstored = unstored if cache is self._vllm else ""
        reason = _explained(_CAUSES[loss.state], cache.name, loss, unstored=unstored)
        groups = () if self._context.groups is None else self._context.groups.groups
        if loss.group is None or loss.group >= len(groups):
            return reason
        return reason._replace(detail=replace(reason.detail, group=loss.group, group_kind=groups[loss.group].kind))


def _doubt(states: list[BlockChange | None], hole: int) -> None:
    """A store that answered later may have looked before it held blocks of uncertain state, so its answer does not prove them
    missing: the following blocks are also uncertain, up to a block that is certainly missing."""
    for number, fact in enumerate(states[hole:], start=hole):
        if fact is None or fact.state not in (BlockState.HELD, BlockState.UNSURE):
            return
        if fact.state is BlockState.HELD:
            states[number] = states[hole]


def _changes(known: Sequence[object]) -> Iterator[int]:
    """The indexes of items that differ from the previous one."""
    return compress(count(1), map(is_not, known, islice(known, 1, None)))


_CONTRADICTED = BlockChange(BlockState.UNSURE, 0)
_UNSTORED = {BlockState.FULL: "full", BlockState.FAILED: "failed"}
_CAUSES = {
    BlockState.EVICTED: Cause.EVICTED,
    BlockState.RESET: Cause.RESET,
    BlockState.UNCACHED: Cause.UNCACHED,
}
