"""KV cache groups: layers of one kind, whose blocks vLLM allocates and frees together.

A group is described by the tokens that the next token attends to. Full attention sees all tokens; a sliding window, a chunk
of local attention and a recurrent state (Mamba) see only the end. So a request can continue after a prefix if each group has
the blocks that the next token sees; it needs no other block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.connector import cache_groups
from kvtrail.connector.cache_groups import inner_spec
from kvtrail.tracer.events.cache_groups import ALL, CHUNKED, FULL, MAMBA, SLIDING, CacheGroup


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group.

    Attributes:
        block_size: tokens per KV block.
        block_bytes: bytes of one block over the group's layers, on one worker.
        layers: the names of its layers.
        cache: the kind of the group, and its window. With the `cache_mode` `ALL`, each block has a recurrent state, otherwise
            only the last block of a step has one.
    """

    block_size: int
    block_bytes: int
    layers: tuple[str, ...] = ()
    cache: CacheGroup = field(default_factory=CacheGroup)

    @property
    def is_whole(self) -> bool:
        """Whether a chunk has either all or none of the group's blocks in its slot."""
        return self.cache.kind in (FULL, MAMBA)

    @property
    def has_few_states(self) -> bool:
        """Whether the group is recurrent and not each block has a state."""
        return self.cache.kind == MAMBA and self.cache.cache_mode != ALL

    def first_seen(self, boundary: int) -> int:
        """The first token that a token at `boundary` sees, as in vLLM's managers of KV cache groups."""
        return self.cache.first_needed(boundary) or 0

    def rows(self, chunk_size: int) -> int:
        """The number of blocks at the end of each chunk that can be needed if the chunk or a later one is the last of a
        hit."""
        window, blocks = self.cache.window or 0, chunk_size // self.block_size
        seen = {FULL: chunk_size, SLIDING: window - 1, CHUNKED: window, MAMBA: 1}[self.cache.kind]
        return min(blocks, -(-seen // self.block_size))

    def needed(self, begin: int, end: int) -> range:
        """The positions in a block table that a load of tokens [begin, end) fills, so that the token at `end` can run."""
        return range(max(begin, self.first_seen(end)) // self.block_size, -(-end // self.block_size))

    def at_hand(self, before: int, after: int) -> range:
        """The block-table positions of full blocks that are valid after a step from `before` to `after` computed tokens,
        without blocks that vLLM may have freed before the step."""
        last = after // self.block_size
        if self.has_few_states:
            return range(last - 1 if after % self.block_size == 0 else last, last)
        first = before if self.cache.kind == MAMBA else self.first_seen(before)
        return range(first // self.block_size, last)


def group_of(spec: Any, layers: Sequence[str]) -> Group | None:
    """The group of these layers, by vLLM's description of their KV cache; None if it cannot be offloaded."""
    inner, cache = inner_spec(spec), cache_groups.group_of(spec, len(layers))
    if not getattr(inner, "prefix_cacheable", True) or not cache.has_place_for_all:
        return None  # blocks that are overwritten, or freed in the middle
    if cache.kind == MAMBA and cache.cache_mode in (None, "none"):
        return None
    if cache.kind == SLIDING:
        cache = cache._replace(window=(cache.window or 0) + getattr(inner, "extra_retained_tokens", 0))
    return Group(inner.block_size, cache.page_bytes or 0, tuple(layers), cache)
