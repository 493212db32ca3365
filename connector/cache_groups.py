"""Reads an engine's KV cache groups from vLLM's configuration."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.cache_groups import CHUNKED, FULL, MAMBA, SLIDING, CacheGroup

_KINDS = {
    "SlidingWindowSpec": SLIDING, "ChunkedLocalAttentionSpec": CHUNKED, "MambaSpec": MAMBA, "FullAttentionSpec": FULL,
    "RSWASpec": "RSWASpec",  # a kind of full attention that frees blocks in the middle
}  # fmt: skip
"""By vLLM's class of a group's specification, or one of its bases."""
_WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}


def groups_in(kv_cache_config: Any, spread: int) -> list[CacheGroup]:
    """The groups, in vLLM's order; a block's tokens are spread over `spread` ranks by context parallelism."""
    return [
        group_of(group.kv_cache_spec, len(group.layer_names), spread)
        for group in getattr(kv_cache_config, "kv_cache_groups", ())
    ]


def inner_spec(spec: Any) -> Any:
    """The specification of a group's layers; if the layers differ only in size, the specification of the first one."""
    return next(iter(getattr(spec, "kv_cache_specs", {}).values()), spec)


def group_of(spec: Any, layers: int, spread: int = 1) -> CacheGroup:
    """The group with this specification and number of layers."""
    inner = inner_spec(spec)
    kind = next((_KINDS[cls.__name__] for cls in type(inner).__mro__ if cls.__name__ in _KINDS), type(inner).__name__)
    window = getattr(inner, _WINDOWS[kind], None) if kind in _WINDOWS else None
    per_layer = 1 if inner is not spec else layers
    size, page = int(spec.block_size) * spread, int(spec.page_size_bytes) * per_layer
    mode = getattr(inner, "mamba_cache_mode", None)
    checkpoints = getattr(inner, "num_prefill_checkpoint_blocks", 0) or None
    return CacheGroup(kind, size, window, layers, page, mode, checkpoints)
