"""The block table of a request, as announced by allocations and steps. Only this module knows a request's blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain
from typing import NamedTuple

from kvtrail.tracer.events.cache_groups import MAMBA, NULL_BLOCK, CacheGroup, groups_of, split
from kvtrail.tracer.events.events import Alloc, LoadError, Plan, RequestEnd, Schedule

WithBlocks = Alloc | LoadError | Plan | RequestEnd | Schedule
"""Events that name blocks by KV cache group."""


class Room(NamedTuple):
    """The capacity of a table: blocks, and the tokens that they hold; and the KV cache group, if there are several."""

    blocks: int
    tokens: int
    group: int | None


class BlockTable:
    """The blocks of a request by KV cache group, in the order of their tokens; it may include blocks that vLLM has freed
    since.

    Attributes:
        groups: the block ids of each group. A group may have the null block at positions that it does not need.
        kinds: the kinds of the groups.
        named_by: the event that named the complete table.
    """

    __slots__ = ("block_size", "groups", "kinds", "named_by")

    def __init__(self, event: WithBlocks) -> None:
        """The complete table that an event names."""
        self.groups = [list(ids) for ids in blocks_by_group(event)]
        self.kinds: Sequence[CacheGroup] = groups_of(event.groups)
        self.block_size = event.block_size
        self.named_by = event

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.groups)

    def __contains__(self, block: int) -> bool:
        return any(block in ids for ids in self.groups)

    def add(self, event: WithBlocks) -> None:
        """A step adds blocks to it. Several connectors may record the same step."""
        added = blocks_by_group(event)
        if len(added) == len(self.groups) and self.grows(added):
            for ids, more in zip(self.groups, added, strict=True):
                ids.extend(more)

    def with_added(self, event: WithBlocks) -> BlockTable:
        """The table after such a step; this one is unchanged."""
        table = copy(self)
        table.groups = [ids.copy() for ids in self.groups]
        table.add(event)
        return table

    def lacks(self, tokens: int) -> Room | None:
        """The capacity of the first group that is too small for these tokens; None if all groups are large enough."""
        for number, ids in enumerate(self.groups):
            size = self.size_of(number)
            if size and number < len(self.kinds) and self.kinds[number].has_place_for_all and tokens > len(ids) * size:
                return Room(len(ids), len(ids) * size, number if len(self.groups) > 1 else None)
        return None

    def grows(self, added: Sequence[Sequence[int]]) -> bool:
        """Whether blocks, by group, are new to the table."""
        for ids, more in zip(self.groups, added, strict=False):
            if more and more[-1] != NULL_BLOCK:
                return not ids or ids[-1] != more[-1]
        return any(added)

    def size_of(self, group: int) -> int | None:
        """Number of tokens in a block of a group; None if unknown."""
        return (self.kinds[group].block_size if group < len(self.kinds) else None) or self.block_size

    def is_recurrent(self, group: int) -> bool:
        """Whether a group holds recurrent states."""
        return group < len(self.kinds) and self.kinds[group].kind == MAMBA

    def new_from(self, computed: int) -> Iterator[int]:
        """The blocks after those of the `computed` tokens: a prefix-cache hit may end within a block. All blocks without a
        hit."""
        for size, ids in self.sized():
            yield from ids[-(-computed // size) + 1 if computed else 0 :]

    def sized(self) -> Iterator[tuple[int, list[int]]]:
        """The blocks of each group, with the number of tokens in a block, if known."""
        for number, ids in enumerate(self.groups):
            if size := self.size_of(number):
                yield size, ids

    @property
    def held(self) -> int:
        """The number of blocks that the request certainly holds."""
        certain = (block for n, ids in enumerate(self.groups) for block in ids[self.certain_from(n) :])
        return sum(block != NULL_BLOCK for block in certain)

    def holds(self, block: int) -> bool | None:
        """Whether the request holds a block; None if it may have been freed."""
        for number, ids in enumerate(self.groups):
            if block in ids and block != NULL_BLOCK:
                return len(ids) - 1 - ids[::-1].index(block) >= self.certain_from(number) or None
        return False

    def moved(self, group: int, blocks: Sequence[int]) -> dict[int, int]:
        """The blocks of a group that now belong to another group, with that group: vLLM freed and reallocated them."""
        own = set(self.groups[group][self.certain_from(group) :])
        others = [number for number in range(len(self.groups)) if number != group]
        held = {block: number for number in others for block in self.groups[number][self.certain_from(number) :]}
        return {block: held[block] for block in blocks if block in held and block not in own and block != NULL_BLOCK}

    def certain_from(self, group: int) -> int:
        """The first position in a group's table with a block that the request certainly holds: the computed tokens are not
        known for each step, but they are at most the table's capacity."""
        return self.needed_from(group, len(self.groups[group]) * (self.size_of(group) or 0))

    def needed_from(self, group: int, computed: int) -> int:
        """The first position in a group's table with a block that a step after `computed` tokens needs."""
        size = self.size_of(group)
        if not size or group >= len(self.kinds):
            return len(self.groups[group])
        return self.kinds[group].needed_from(computed, size)


def loaded_into(event: Alloc) -> list[int]:
    """The blocks that an allocation's load writes: the last of each group. Without a block size, all of them may be."""
    table, known = BlockTable(event), event.total is not None
    into: list[int] = []
    for number, ids in enumerate(table.groups):
        size = table.size_of(number) if known else None
        into += ids if size is None else ids[max(0, len(ids) - -(-event.allocated // size)) :]
    return [block for block in into if block != NULL_BLOCK]


def blocks_by_group(event: WithBlocks) -> list[Sequence[int]]:
    """The blocks that an event names, by KV cache group."""
    return split(event.blocks_ids or (), event.blocks_by_group)
