"""The worker's side of the OffloadConnector: host memory, and real copies to and from vLLM's paged KV cache."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.plan import Copy


class HostMemory:
    """Slots of host memory for chunks, one tensor a layer, shaped [slots, blocks per chunk, *one block's shape]."""

    def __init__(self, config: OffloadConfig, *, num_blocks: int) -> None:
        """`num_blocks`: KV blocks in the device's cache, by which a layer's block dimension is recognized."""
        self._config = config
        self._num_blocks = num_blocks
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._block_bytes = 0

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Allocate host memory for the layers' KV caches; layers that share a tensor share a slot.

        Raises:
            ValueError: a layer whose layout is unknown, by name and shape.
        """
        seen: set[int] = set()
        for name, cache in kv_caches.items():
            if cache.data_ptr() in seen:
                continue
            seen.add(cache.data_ptr())
            blocks_first = self._blocks_first(name, cache)
            shape = (self._config.slots, self._config.blocks_per_chunk, *blocks_first.shape[1:])
            room = torch.empty(shape, dtype=cache.dtype, pin_memory=cache.device.type == "cuda")
            self._layers.append((blocks_first, room))
            self._block_bytes += room[0, 0].nbytes

    def load(self, copies: Iterable[Copy]) -> None:
        """Copy chunks into KV blocks. Returns when the blocks may be read by work queued after this call."""
        for copy in copies:
            for cache, room in self._layers:
                part = room[copy.slot, copy.first : copy.first + len(copy.blocks)]
                cache.index_copy_(0, _ids(copy, cache), part.to(cache.device))

    def store(self, copies: Iterable[Copy]) -> None:
        """Copy KV blocks into chunks. Returns when host memory holds them."""
        for copy in copies:
            for cache, room in self._layers:
                part = room[copy.slot, copy.first : copy.first + len(copy.blocks)]
                part.copy_(cache.index_select(0, _ids(copy, cache)))

    def bytes_of(self, copy: Copy) -> int:
        """Bytes that a copy moves, over all layers of this worker."""
        return self._block_bytes * len(copy.blocks)

    def _blocks_first(self, name: str, cache: torch.Tensor) -> torch.Tensor:
        """A view of a layer's cache whose first dimension counts blocks: [blocks, ...] as it is, [2, blocks, ...] turned."""
        for dimension in (0, 1):
            if cache.dim() > dimension and cache.shape[dimension] == self._num_blocks:
                return cache.movedim(dimension, 0)
        raise ValueError(
            f"OffloadConnector: layer {name} has a KV cache of shape {tuple(cache.shape)}, in which neither of the first"
            f" two dimensions counts the {self._num_blocks} KV blocks; this layout is not supported"
        )


def _ids(copy: Copy, cache: torch.Tensor) -> torch.Tensor:
    return torch.tensor(copy.blocks, dtype=torch.long, device=cache.device)
