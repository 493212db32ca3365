"""The worker's side of the OffloadConnector: host memory, and real copies to and from vLLM's paged KV cache.

`benchmarks/copies.py` compares them with a plain copy of as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.plan import Copy


class HostMemory:
    """Slots of host memory for chunks.

    On a GPU the copies run on a stream of their own, which takes turns with the engine's. Nobody waits for them on the CPU:
    only the same stream reads what they write to host memory.
    """

    def __init__(self, config: OffloadConfig, *, num_blocks: int) -> None:
        """`num_blocks`: KV blocks in the device's cache, by which a layer's block dimension is recognized."""
        self._config = config
        self._num_blocks = num_blocks
        self._parts: list[_Rows | _Tensors] = []
        self._device = torch.device("cpu")
        self._stream: Any = None
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
            self._device = cache.device
            if cache.is_cuda and self._stream is None:
                self._stream = torch.cuda.Stream(cache.device)
            for part in self._blocks_first(name, cache):
                shape = (self._config.slots, self._config.blocks_per_chunk, *part.shape[1:])
                room = torch.empty(shape, dtype=part.dtype, pin_memory=part.is_cuda)
                copied = _Tensors if part.is_cuda or not part.is_contiguous() else _Rows
                self._parts.append(copied(part, room))
                self._block_bytes += room[0, 0].nbytes

    def load(self, copies: Sequence[Copy]) -> None:
        """Copy chunks into KV blocks. Returns when the blocks may be read by work queued after this call."""
        with self._taking_turns():
            blocks = self._blocks(copies)
            for part in self._parts:
                part.load(copies, blocks)

    def store(self, copies: Sequence[Copy]) -> None:
        """Copy KV blocks into chunks. Returns when the blocks may be written by work queued after this call."""
        with self._taking_turns():
            blocks = self._blocks(copies)
            for part in self._parts:
                part.store(copies, blocks)

    def bytes_of(self, copy: Copy) -> int:
        """Bytes that a copy moves, over all layers of this worker."""
        return self._block_bytes * len(copy.blocks)

    def _blocks(self, copies: Sequence[Copy]) -> torch.Tensor:
        """The ids of all blocks of these copies, one after the other, on the device."""
        return torch.tensor([block for copy in copies for block in copy.blocks], device=self._device)

    @contextmanager
    def _taking_turns(self) -> Iterator[None]:
        """What is queued inside begins after the engine's work so far, and before its work from then on."""
        if self._stream is None:
            yield
            return
        engine = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(engine)
        with torch.cuda.stream(self._stream):
            yield
        engine.wait_stream(self._stream)

    def _blocks_first(self, name: str, cache: torch.Tensor) -> list[torch.Tensor]:
        """Views of a layer's cache whose first dimension counts blocks, the others in the order in which they lie in memory:
        of [blocks, ...] one, and of [2, blocks, ...], keys and values apart, two."""
        for dimension in (0, 1):
            if cache.dim() > dimension and cache.shape[dimension] == self._num_blocks:
                apart = dimension == 1 and cache.stride(0) > cache.stride(1)
                return [_as_it_lies(each) for each in (cache.unbind(0) if apart else [cache.movedim(dimension, 0)])]
        raise ValueError(
            f"OffloadConnector: layer {name} has a KV cache of shape {tuple(cache.shape)}, in which neither of the first"
            f" two dimensions counts the {self._num_blocks} KV blocks; this layout is not supported"
        )


def _as_it_lies(blocks_first: torch.Tensor) -> torch.Tensor:
    """The same with the dimensions after the first in the order of their strides."""
    inner = sorted(range(1, blocks_first.dim()), key=blocks_first.stride, reverse=True)
    return blocks_first.permute(0, *inner)


class _Rows:
    """A cache in the CPU's memory, each of whose blocks is one row of bytes."""

    def __init__(self, cache: torch.Tensor, room: torch.Tensor) -> None:
        """`cache` is [blocks, ...] and `room` [slots, blocks per chunk, ...], both contiguous."""
        self._cache = cache.flatten(1).view(torch.uint8).numpy()
        self._room = room.flatten(2).view(torch.uint8).numpy()

    def load(self, copies: Sequence[Copy], blocks: torch.Tensor) -> None:
        ids = blocks.numpy()
        for these, part in _places(copies, self._room):
            self._cache[ids[these]] = part

    def store(self, copies: Sequence[Copy], blocks: torch.Tensor) -> None:
        ids = blocks.numpy()
        for these, part in _places(copies, self._room):
            np.take(self._cache, ids[these], axis=0, out=part, mode="clip")  # other modes copy twice


class _Tensors:
    """A cache on a GPU, or one whose blocks do not lie in one piece. All blocks of a step are gathered, then copied, and
    copied, then spread."""

    def __init__(self, cache: torch.Tensor, room: torch.Tensor) -> None:
        self._cache = cache
        self._room = room

    def load(self, copies: Sequence[Copy], blocks: torch.Tensor) -> None:
        gathered = self._cache.new_empty((len(blocks), *self._cache.shape[1:]))
        for these, part in _places(copies, self._room):
            gathered[these].copy_(part, non_blocking=True)
        self._cache.index_copy_(0, blocks, gathered)

    def store(self, copies: Sequence[Copy], blocks: torch.Tensor) -> None:
        gathered = self._cache.index_select(0, blocks)
        for these, part in _places(copies, self._room):
            part.copy_(gathered[these], non_blocking=True)


def _places(copies: Sequence[Copy], room: Any) -> Iterator[tuple[slice, Any]]:
    """Of each copy, its place among the blocks of all, and in host memory."""
    begin = 0
    for copy in copies:
        end = begin + len(copy.blocks)
        yield slice(begin, end), room[copy.slot, copy.first : copy.first + len(copy.blocks)]
        begin = end
