"""The memory layout of the blocks in vLLM's KV caches, and the number of tokens that a block hash covers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

Cache: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
"""The cache of a layer: one tensor with KV, or the several tensors of a recurrent state."""


def tensors_of(cache: Cache) -> Sequence[torch.Tensor]:
    """The tensors of a layer's cache."""
    return cache if isinstance(cache, list | tuple) else (cache,)  # type: ignore[return-value]  # otherwise one tensor


def views_of(caches: Mapping[str, Cache], num_blocks: int) -> Iterator[torch.Tensor]:
    """Views of the caches of all layers, each with the shape [blocks, ...]. Layers that share a tensor count once.

    Raises:
        ValueError: no dimension of a layer counts the blocks; the text has the layer's name and shape.
    """
    seen: set[tuple[object, ...]] = set()
    for name, cache in caches.items():
        tensors = tensors_of(cache)
        place = tuple((each.data_ptr(), each.shape, each.stride()) for each in tensors)
        if place not in seen:
            seen.add(place)
            for each in tensors:
                yield from blocks_first(name, each, num_blocks)


def blocks_first(name: str, cache: torch.Tensor, num_blocks: int) -> list[torch.Tensor]:
    """Views of a tensor with blocks as the first dimension, and the other dimensions in memory order. A tensor [blocks, ...]
    has one view; a tensor [2, blocks, ...] with separate keys and values has two. A block may consist of several blocks of
    the attention kernel.

    Raises:
        ValueError: no dimension counts them.
    """
    sizes = [*cache.shape]
    dimension = next((n for n, size in enumerate(sizes) if size == num_blocks), None)
    if dimension is None:
        dimension = next((n for n, size in enumerate(sizes) if size > num_blocks and size % num_blocks == 0), None)
        if dimension is None:
            raise ValueError(
                f"layer {name} has a KV cache of shape {tuple(sizes)}, which does not show its {num_blocks} blocks"
            )
        cache = cache.unflatten(dimension, (num_blocks, -1))
    apart = dimension == 1 and cache.stride(0) > cache.stride(1)
    views = cache.unbind(0) if apart else (cache.movedim(dimension, 0),)
    return [_as_it_lies(view) for view in views]


def fill_with_zeros(caches: Mapping[str, Cache], num_blocks: int, blocks: Collection[int]) -> None:
    """Overwrite these blocks with zeros in all layers."""
    import torch

    for view in views_of(caches, num_blocks):
        view[torch.tensor([*blocks], device=view.device)] = torch.zeros((), dtype=view.dtype, device=view.device)


def _as_it_lies(view: torch.Tensor) -> torch.Tensor:
    inner = sorted(range(1, view.dim()), key=view.stride, reverse=True)
    return view.permute(0, *inner)


def hash_size(vllm_config: Any, kv_cache_config: Any) -> int:
    """The number of tokens that each of vLLM's block hashes covers."""
    try:
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    except ImportError:  # an older vLLM, in which all groups have one size
        return int(vllm_config.cache_config.block_size)
    return int(resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1])
