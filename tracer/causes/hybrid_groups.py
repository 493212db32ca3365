"""Hits of a prompt in a cache of a model with several KV cache groups. Pure.

A prefix of n tokens can be reused if each group holds the blocks that it needs: full attention all blocks, a window the
blocks of its last tokens, a recurrent group the state after n tokens (vLLM,
`HybridKVCacheCoordinator.find_longest_cache_hit`). Such an n is a joint boundary; it is a multiple of all block sizes, so a
prompt is divided into *units* of their least common multiple.

A group other than full attention need not keep its blocks at each boundary: a recurrent group may have a state only every few
thousand tokens. So the facts about a unit are those of the next boundary, at or after its end, that all groups once kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, lcm

from msgspec import Struct

from kvtrail.tracer.causes.cache_model import LOST, UNSTORED, BlockChange, BlockState, CacheModel, Key
from kvtrail.tracer.events.cache_groups import CHUNKED, FULL, MAMBA, SLIDING, CacheGroup

Known = BlockChange | None
"""The fact about a block; None: its group never had it."""


class HybridGroups(Struct, frozen=True):
    """The KV cache groups of an engine, if the needs of a hit are known for each.

    Attributes:
        groups: the groups by number.
        unit: number of tokens in a unit.
        ends_early: whether a hit ends with a unit before the last token of a prompt, and also needs the blocks that another
            cache holds: a store that examines prompts from their beginning.
    """

    groups: tuple[CacheGroup, ...]
    unit: int
    ends_early: bool = False

    @classmethod
    def of(
        cls, groups: tuple[CacheGroup, ...], block_size: int, *, chunk_size: int = 0, by_block: bool = False
    ) -> HybridGroups | None:
        """The groups whose blocks are hashed in units of `block_size` tokens; `chunk_size`: a store keeps chunks of all
        groups, `by_block` as in `Capability.TELLS_GROUPS`. None if the needs of a hit are unknown: with a group of another
        kind, or a recurrent group with another block size, when a hit may be a part of a block."""
        sizes = {group.block_size or 0 for group in groups}
        if len(groups) < 2 or not block_size or gcd(*sizes) != block_size or 0 in sizes:
            return None
        for group in groups:
            has_window = group.kind in (SLIDING, CHUNKED) and group.window
            if not (has_window or group.kind in (FULL, MAMBA)) or (group.kind == MAMBA and len(sizes) > 1):
                return None
        if not chunk_size:
            return cls(groups, lcm(*sizes))
        if any(chunk_size % size for size in sizes):
            return None
        if not by_block:
            return cls(tuple(_in_chunks(group, chunk_size) for group in groups), chunk_size)
        kinds = {group.kind for group in groups}
        if FULL not in kinds:
            return None  # nothing says which chunks the store has
        whole = (FULL, MAMBA)
        return cls(
            tuple(group._replace(block_size=chunk_size) if group.kind in whole else group for group in groups),
            chunk_size,
            ends_early=kinds != {FULL},
        )

    def states(
        self,
        cache: CacheModel,
        chain: Sequence[bytes],
        block_size: int,
        units: tuple[int, int],
        is_fresh: Callable[[Key], bool],
        *,
        begin: int = 0,
        is_cut: bool = False,
    ) -> list[Known]:
        """The facts about these units of a prompt, each treated as one block of one cache. Nothing before the unit `begin` is
        needed: it is in another cache. `is_cut`: no hit ends with the last unit, which ends the prompt."""
        dense, sparse, never, unstored = self._known(cache, chain, block_size, units, is_fresh, begin)
        last = max(0, len(dense) - is_cut)
        found = [
            *_until_next_boundary(dense[:last], sparse[:last], never[:last]),
            *_until_next_boundary(dense[last:], sparse[last:], never[last:]),
        ]
        return [each or unstored.get(n) for n, each in enumerate(found)] if unstored else found

    @property
    def has_states(self) -> bool:
        """Whether one of them is recurrent."""
        return any(group.kind == MAMBA for group in self.groups)

    def held(
        self, cache: CacheModel, chain: Sequence[bytes], block_size: int, computed: int, is_fresh: Callable[[Key], bool]
    ) -> tuple[int, int]:
        """Among the tokens that full attention held, the number that all groups certainly held, and that they may have held.
        With recurrent groups vLLM asks a connector for tokens after those of full attention, and if it offers none, uses
        those of all groups (vLLM, `KVCacheManager.get_computed_blocks_for_connector`)."""
        _, sparse, _, _ = self._known(cache, chain, block_size, (0, computed // self.unit), is_fresh, 0)
        known = possible = 0
        for end, kept in enumerate(sparse, start=1):
            if kept is not None and kept.state is BlockState.HELD:
                known = possible = end
            elif kept is not None and kept.state is BlockState.UNSURE:
                possible = end
        return known * self.unit, possible * self.unit

    def _known(
        self,
        cache: CacheModel,
        chain: Sequence[bytes],
        block_size: int,
        units: tuple[int, int],
        is_fresh: Callable[[Key], bool],
        begin: int,
    ) -> tuple[list[Known], list[Known], list[int], dict[int, BlockChange]]:
        """For each unit: the facts about its blocks of full attention; the facts about the blocks of other groups that a hit
        ending with it needs; the group that never kept those; and, by unit, why a store lacks a chunk of full attention."""
        first, end = units
        dense: list[Known] = [_ALWAYS] * (end - first)
        sparse, never = dense.copy(), [0] * (end - first)
        unstored: dict[int, BlockChange] = {}
        for number, group in enumerate(self.groups):
            is_dense, size = group.kind == FULL, group.block_size or block_size
            per, blocks = size // block_size, self.unit // size
            low = first * blocks if is_dense else max(begin * blocks, self._needed_from(group, first + 1, size))
            facts = cache.group(number).states(chain[(low + 1) * per - 1 : end * blocks * per : per], is_fresh)
            for n, fact in enumerate(facts):
                if fact is not None and fact.state in UNSTORED:
                    unstored[n // blocks] = fact
                    facts[n] = None if fact.before is None else cache.now(fact.before)
            stretches = _Stretches(facts)
            for unit in range(first, end):
                start = unit * blocks if is_dense else max(low, self._needed_from(group, unit + 1, size))
                part, place = stretches.whole(start - low, (unit + 1) * blocks - low), unit - first
                if is_dense:
                    dense[place] = _both(dense[place], part)
                else:
                    sparse[place] = _both(sparse[place], part)
                    never[place] = number if part is None else never[place]
        return dense, sparse, never, unstored

    def _needed_from(self, group: CacheGroup, units: int, size: int) -> int:
        """The first block that a hit of `units` units needs of a group that is not full attention."""
        end = units * self.unit
        first = group.needed_from(end, size)
        return (
            min(first, end // size - 1) if group.kind == SLIDING and not self.ends_early else first
        )  # vLLM requires one block even for a window of 1


class _Stretches:
    """The facts about a group's blocks, by runs with the same facts."""

    def __init__(self, facts: Sequence[Known]) -> None:
        self._facts = facts
        self._since: list[int] = []
        """For each block, the first block of its run."""
        for n, fact in enumerate(facts):
            self._since.append(self._since[-1] if n and facts[n - 1] is fact else n)

    def whole(self, start: int, end: int) -> Known:
        """The combined fact of all these blocks."""
        found: Known = _ALWAYS
        while end > start:
            found = _both(found, self._facts[end - 1])
            end = self._since[end - 1]
        return found


def _in_chunks(group: CacheGroup, chunk_size: int) -> CacheGroup:
    """A group in a store whose lookups require the whole window in full chunks, including the token itself (vLLM,
    `get_sliding_window_size_in_chunks`)."""
    window = None if group.window is None else group.window + (group.kind == SLIDING)
    return group._replace(block_size=chunk_size, window=window)


def _both(one: Known, other: Known) -> Known:
    """The combined fact of two blocks that a hit needs together: the first loss counts."""
    if one is None or other is None or one is other:
        return None if one is None else other
    losses = [each for each in (one, other) if each.state in LOST]
    if losses:
        return min(losses, key=_number)
    if one.state is other.state is BlockState.HELD:
        return max(one, other, key=_number)
    return other if one.state is BlockState.HELD else one


def _number(fact: BlockChange) -> int:
    return fact.number


def _until_next_boundary(dense: Sequence[Known], sparse: Sequence[Known], never: Sequence[int]) -> list[Known]:
    """For each unit, the fact about the next boundary that all groups ever kept. `dense` has the facts about the blocks of
    full attention, `sparse` about the blocks that the others need at the end of each unit, and `never` the groups that never
    kept them."""
    found: list[Known] = []
    uncached: dict[tuple[int, int], BlockChange] = {}
    following: Known = None
    for own, kept, number in zip(reversed(dense), reversed(sparse), reversed(never), strict=True):
        if own is None or kept is not None:
            following = _both(own, kept)
        elif following is not None:
            following = _both(own, following)
        if following is not None or own is None or own is _ALWAYS or own.state is not BlockState.HELD:
            found.append(following or (own if own is not _ALWAYS else None))
        else:
            at = (own.number, number)
            if at not in uncached:
                uncached[at] = BlockChange(
                    BlockState.UNCACHED, own.number, own.at_ns, own.span_id, own.by, group=number
                )
            found.append(uncached[at])
    found.reverse()
    reach = 0
    for end, (own, kept) in enumerate(zip(dense, sparse, strict=True), start=1):
        if own is None or own.state is not BlockState.HELD:
            break
        if kept is not None and kept.state is BlockState.HELD:
            reach = end
    return [*dense[:reach], *found[reach:]]


_ALWAYS = BlockChange(BlockState.HELD, -1)
"""Unneeded blocks count as held."""
