"""KV cache groups: layers of one kind, whose blocks vLLM allocates and frees together.

A group is described by the tokens that the next token attends to. Full attention sees all tokens; a sliding window, a chunk
of local attention and a recurrent state (Mamba) see only the end. So a request can continue after a prefix if each group has
the blocks that the next token sees; it needs no other block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """The tokens that a group's layers see before the next one."""

    ALL = "full attention"
    WINDOW = "a sliding window"
    LOCAL = "a chunk of local attention"
    STATE = "a recurrent state"


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group.

    Attributes:
        block_size: tokens per KV block.
        block_bytes: bytes of one block over the group's layers, on one worker.
        layers: the names of its layers.
        kind: the tokens that they see.
        span: maximum number of tokens before the next one that they see; 0 for all.
        dense: for states, whether each block has one; otherwise only the last block of a step has one.
    """

    block_size: int
    block_bytes: int
    layers: tuple[str, ...] = ()
    kind: Kind = Kind.ALL
    span: int = 0
    dense: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether a chunk has either all or none of the group's blocks in its slot."""
        return self.kind in (Kind.ALL, Kind.STATE)

    def first_seen(self, boundary: int) -> int:
        """The first token that a token at `boundary` sees, as in vLLM's managers of KV cache groups."""
        match self.kind:
            case Kind.ALL:
                return 0
            case Kind.LOCAL:
                return boundary - boundary % self.span
            case _:
                return max(0, boundary - self.span)

    def rows(self, chunk_size: int) -> int:
        """The number of blocks at the end of each chunk that can be needed if the chunk or a later one is the last of a
        hit."""
        blocks = chunk_size // self.block_size
        return blocks if self.kind is Kind.ALL else min(blocks, -(-self.span // self.block_size))

    def needed(self, begin: int, end: int) -> range:
        """The positions in a block table that a load of tokens [begin, end) fills, so that the token at `end` can run."""
        return range(max(begin, self.first_seen(end)) // self.block_size, -(-end // self.block_size))

    def at_hand(self, before: int, after: int) -> range:
        """The block-table positions of full blocks that are valid after a step from `before` to `after` computed tokens,
        without blocks that vLLM may have freed before the step."""
        last = after // self.block_size
        if self.kind is Kind.STATE:
            if self.dense:
                return range(before // self.block_size, last)
            return range(last - 1 if after % self.block_size == 0 else last, last)
        return range(self.first_seen(before) // self.block_size, last)


def group_of(spec: Any, layers: Sequence[str]) -> Group | None:
    """The group of these layers, by vLLM's description of their KV cache; None if it cannot be offloaded."""
    from vllm.v1 import kv_cache_interface as known

    uniform = getattr(known, "UniformTypeKVCacheSpecs", None)
    page = spec.page_size_bytes
    if uniform is not None and isinstance(spec, uniform):
        spec = next(iter(spec.kv_cache_specs.values()))
    else:
        page *= len(layers)
    if not getattr(spec, "prefix_cacheable", True) or isinstance(spec, getattr(known, "RSWASpec", ())):
        return None  # blocks that are overwritten, or freed in the middle
    given: Any = {"block_size": spec.block_size, "block_bytes": page, "layers": tuple(layers)}
    if isinstance(spec, known.FullAttentionSpec):
        return Group(**given)
    if isinstance(spec, known.SlidingWindowSpec):
        kept = getattr(spec, "extra_retained_tokens", 0)
        return Group(**given, kind=Kind.WINDOW, span=spec.sliding_window - 1 + kept)
    if isinstance(spec, known.ChunkedLocalAttentionSpec):
        return Group(**given, kind=Kind.LOCAL, span=spec.attention_chunk_size)
    if isinstance(spec, known.MambaSpec) and (mode := getattr(spec, "mamba_cache_mode", "none")) != "none":
        return Group(**given, kind=Kind.STATE, span=1, dense=mode == "all")
    return None
