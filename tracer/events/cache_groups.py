"""The KV cache groups of a model: its layers by what they keep of a request's tokens.

vLLM gives each group a block table of its own; all groups take their blocks from one pool, so that a block's id is one
block's in all of them, and 0 is the null block's. A recorder declares the groups in the resource attribute `semconv.GROUPS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

NULL_BLOCK = 0
"""vLLM's placeholder in a block table for a block that is not there, as one that a sliding window has left behind."""
FULL, SLIDING, CHUNKED, MAMBA = "full_attention", "sliding_window", "chunked_local_attention", "mamba"
"""The kinds of groups with a known use of blocks. Any other is named after vLLM's class."""
ALIGN = "align"
"""vLLM's `mamba_cache_mode` in which steps end where states are to be kept."""
ALL = "all"
"""The one in which a step writes the state after each block as well."""


class CacheGroup(NamedTuple):
    """A KV cache group. What is not known of it is None."""

    kind: str = FULL
    block_size: int | None = None
    """Tokens of a block; of a recurrent group those after which a state may be cached."""
    window: int | None = None
    """Tokens that attention reaches back, the one that it is computed for included; or of a chunk of chunked attention."""
    layers: int | None = None
    page_bytes: int | None = None
    """Bytes of a block, over all of the group's layers."""
    cache_mode: str | None = None
    """Of a recurrent group, vLLM's `mamba_cache_mode`: which states are kept."""
    checkpoints: int | None = None
    """Of a recurrent group, blocks for states that a step writes before its end; None where there are none."""

    @property
    def has_states_at_ends_alone(self) -> bool:
        """Whether a step leaves one state of this group, a recurrent one: that after its last token."""
        return self.kind == MAMBA and self.cache_mode == ALIGN and not self.checkpoints

    @property
    def has_place_for_all(self) -> bool:
        """Whether a block table of this group has a place for each token of a request, be it one without a block."""
        return self.kind in (FULL, SLIDING, CHUNKED, MAMBA)

    def needed_from(self, computed: int, block_size: int) -> int:
        """The first place in a block table with a block that a step beginning after `computed` tokens needs. vLLM gives the
        ones before it back, in that step or a later one."""
        first = self.first_needed(computed)
        return -(-computed // block_size) if first is None else first // block_size

    def first_needed(self, computed: int) -> int | None:
        """The first token that a step needs if it begins after `computed` ones; None where that is not known of this
        kind. A recurrent group needs its last state, which is that of the last computed token."""
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
    """The size in tokens of the blocks within which a hit may end: with a recurrent group, since vLLM may keep its states
    within a block. 1 where hits are of whole blocks."""
    recurrent = (group for group in groups_of(declared) if group.kind == MAMBA)
    return max((group.block_size or block_size or 1 for group in recurrent), default=1)


def declaration(groups: Iterable[CacheGroup]) -> str | None:
    """The attribute's value; None where there is nothing to declare: one group of full attention."""
    known = declared(groups)
    if not known or (len(known) == 1 and known[0]["kind"] == FULL):
        return None
    return json.dumps(known, separators=(",", ":"))


def declared(groups: Iterable[CacheGroup]) -> list[dict[str, Any]]:
    """Each group as JSON-ready data, without what is not known of it."""
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
    """Whether one of an engine's groups is recurrent."""
    return any(group.kind == MAMBA for group in groups_of(declared))


def _group(declared: dict[str, Any]) -> CacheGroup:
    names = ("block_size", "window", "layers", "page_bytes", "checkpoints")
    sizes = {name: declared[name] for name in names if type(declared.get(name)) is int and declared[name] > 0}
    mode = declared.get("cache_mode")
    return CacheGroup(str(declared["kind"]), **sizes, cache_mode=mode if isinstance(mode, str) else None)
