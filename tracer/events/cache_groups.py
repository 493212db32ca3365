"""The KV cache groups of a model: sets of layers that keep the KV of the same tokens of a request.

vLLM gives each group its own block table. All groups take their blocks from one pool, so a block id means the same block in
every group, and id 0 is the null block. A recorder declares the groups in the resource attribute `semconv.GROUPS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

NULL_BLOCK = 0
"""vLLM's placeholder in a block table for an absent block, such as one that a sliding window has left behind."""
FULL, SLIDING, CHUNKED, MAMBA = "full_attention", "sliding_window", "chunked_local_attention", "mamba"
"""The kinds of groups whose use of blocks is known. Any other kind has the name of vLLM's class."""
ALIGN = "align"
"""The `mamba_cache_mode` of vLLM in which a step ends wherever a state is to be kept."""
ALL = "all"
"""The `mamba_cache_mode` of vLLM in which a step also writes the state after each block."""


def split(ids: Sequence[int], counts: Sequence[int] | None) -> list[Sequence[int]]:
    """Block ids in consecutive parts of these lengths, such as those of each group; in one part if no lengths are given."""
    if counts is None:
        return [ids]
    ends = accumulate(counts)
    return [ids[end - count : end] for end, count in zip(ends, counts, strict=True)]


class CacheGroup(NamedTuple):
    """A KV cache group. Unknown fields are None."""

    kind: str = FULL
    block_size: int | None = None
    """Tokens per block. For a recurrent group, the interval in tokens at which a state may be cached."""
    window: int | None = None
    """The attention window in tokens, the current token included. For chunked attention, the tokens of a chunk."""
    layers: int | None = None
    page_bytes: int | None = None
    """Bytes of a block, summed over the group's layers."""
    cache_mode: str | None = None
    """For a recurrent group, vLLM's `mamba_cache_mode`: which states are kept."""
    checkpoints: int | None = None
    """For a recurrent group, the number of blocks for states that a step writes before its end; None if there are none."""

    @property
    def has_states_at_ends_alone(self) -> bool:
        """Whether the group is recurrent and a step leaves only the state after its last token."""
        return self.kind == MAMBA and self.cache_mode == ALIGN and not self.checkpoints

    @property
    def has_place_for_all(self) -> bool:
        """Whether a block table of this group has an entry for each token of a request, even where there is no block."""
        return self.kind in (FULL, SLIDING, CHUNKED, MAMBA)

    def needed_from(self, computed: int, block_size: int) -> int:
        """The first index in a block table whose block is needed by a step that begins after `computed` tokens. vLLM frees
        the blocks before it, in that step or a later one."""
        first = self.first_needed(computed)
        return -(-computed // block_size) if first is None else first // block_size

    def first_needed(self, computed: int) -> int | None:
        """The first token that a step needs if it begins after `computed` tokens; None if this is unknown for the kind of
        group. A recurrent group needs its last state, which belongs to the last computed token."""
        if self.kind == FULL:
            return 0
        if self.kind == SLIDING and self.window:
            return max(0, computed - self.window + 1)
        if self.kind == CHUNKED and self.window:
            return computed // self.window * self.window
        return max(0, computed - 1) if self.kind == MAMBA else None


ONE = (CacheGroup(),)
"""An engine that declares no groups has one of full attention."""


def part_of_block(declared: str | None, block_size: int | None) -> int:
    """The size in tokens of the blocks within which a hit may end; 1 if hits consist of whole blocks. A hit may end within a
    block if a group is recurrent, since vLLM may keep its states within a block."""
    recurrent = (group for group in groups_of(declared) if group.kind == MAMBA)
    return max((group.block_size or block_size or 1 for group in recurrent), default=1)


def declaration(groups: Iterable[CacheGroup]) -> str | None:
    """The attribute's value; None if the only group is one of full attention, which needs no declaration."""
    known = declared(groups)
    if not known or (len(known) == 1 and known[0]["kind"] == FULL):
        return None
    return json.dumps(known, separators=(",", ":"))


def declared(groups: Iterable[CacheGroup]) -> list[dict[str, Any]]:
    """Each group as JSON-ready data, without its unknown fields."""
    return [{name: value for name, value in group._asdict().items() if value is not None} for group in groups]


@lru_cache(maxsize=256)
def groups_of(declared: str | None) -> tuple[CacheGroup, ...]:
    """The groups of an engine; `declared` is the attribute's value, if its recorder wrote any."""
    if declared is None:
        return ONE
    try:
        groups = tuple(_group(each) for each in json.loads(declared))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ONE
    return groups or ONE


@lru_cache(maxsize=256)
def has_states(declared: str | None) -> bool:
    """Whether an engine has a recurrent group."""
    return any(group.kind == MAMBA for group in groups_of(declared))


def _group(declared: dict[str, Any]) -> CacheGroup:
    names = ("block_size", "window", "layers", "page_bytes", "checkpoints")
    sizes = {name: declared[name] for name in names if type(declared.get(name)) is int and declared[name] > 0}
    mode = declared.get("cache_mode")
    return CacheGroup(str(declared["kind"]), **sizes, cache_mode=mode if isinstance(mode, str) else None)
