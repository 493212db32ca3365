"""KV cache groups: layers of one kind. vLLM gives out and takes back their blocks together.

A group is described by what the next token sees of it. Full attention sees everything; a sliding window, a chunk of local
attention and a recurrent state, as Mamba has it, see the end only. So a request can go on behind a prefix where each group
has the blocks of what the next token sees there, and needs no other block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """What a group's layers see of the tokens before the next one."""

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
        layers: their names.
        kind: what they see.
        span: how many tokens before the next one they see, at the most; 0 for all.
        dense: of a state, whether each block gets one; else only the last block of a step has it.
    """

    block_size: int
    block_bytes: int
    layers: tuple[str, ...] = ()
    kind: Kind = Kind.ALL
    span: int = 0
    dense: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether a chunk has all blocks of this group that there is room for, or none."""
        return self.kind in (Kind.ALL, Kind.STATE)

    def first_seen(self, boundary: int) -> int:
        """The first token that a token at `boundary` sees, as vLLM's managers of KV cache groups have it."""
        match self.kind:
            case Kind.ALL:
                return 0
            case Kind.LOCAL:
                return boundary - boundary % self.span
            case _:
                return max(0, boundary - self.span)

    def rows(self, chunk_size: int) -> int:
        """How many blocks at the end of each chunk can be needed where the chunk or a later one is the last of a hit."""
        blocks = chunk_size // self.block_size
        return blocks if self.kind is Kind.ALL else min(blocks, -(-self.span // self.block_size))

    def needed(self, begin: int, end: int) -> range:
        """The places in a block table that a load of tokens [begin, end) fills, so that the token at `end` can run."""
        return range(max(begin, self.first_seen(end)) // self.block_size, -(-end // self.block_size))

    def at_hand(self, before: int, after: int) -> range:
        """The block-table places of whole blocks that are valid after a step from `before` to `after` computed tokens,
        without those that vLLM may have dropped before the step."""
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
        return None  # blocks that are overwritten, or dropped in the middle
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
