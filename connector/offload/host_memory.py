"""The worker's side of the OffloadConnector: host memory, and real copies to and from vLLM's paged KV cache.

`benchmarks/copies.py` compares them with a plain copy of the same number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from kvtrail.connector.kv_layout import Cache, blocks_first, tensors_of
from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.plan import Copy

MANY_BYTES = 1 << 20
"""Number of bytes from which a step uses several threads."""
Places = Sequence[tuple[slice, slice]]


class HostMemory:
    """Slots of host memory for chunks. Copies run on the calling thread; on a GPU, on the current stream.

    Attributes:
        device: the device of the KV caches.
    """

    def __init__(self, config: OffloadConfig, *, num_blocks: int) -> None:
        """`num_blocks`: KV blocks in the device's cache, by which a layer's block dimension is recognized."""
        self._config = config
        self._num_blocks = num_blocks
        self._parts: list[_Rows | _Tensors] = []
        self._of_group: list[list[_Rows | _Tensors]] = [[] for _ in config.groups]
        self._group_of = {layer: number for number, group in enumerate(config.groups) for layer in group.layers}
        self._block_bytes = [0] * len(config.groups)
        self.device = torch.device("cpu")
        self._threads: ThreadPoolExecutor | None = None

    def register(self, kv_caches: Mapping[str, Cache]) -> None:
        """Allocate host memory for the layers' KV caches; layers of a group that share a tensor share a slot. The layers of
        several groups may share memory, in which each block belongs to one of them.

        Raises:
            ValueError: the layout or the group of a layer is unknown; with its name.
        """
        seen: set[tuple[int, int]] = set()
        for name, caches in kv_caches.items():
            group = self._group(name)
            for cache in tensors_of(caches):
                if (group, cache.data_ptr()) in seen:
                    continue
                seen.add((group, cache.data_ptr()))
                self.device = cache.device
                for part in blocks_first(name, cache, self._num_blocks):
                    copied = _Tensors if part.is_cuda or not part.is_contiguous() else _Rows
                    self._of_group[group].append(copied(part, self._config.slots * self._config.rows[group]))
                    self._parts.append(self._of_group[group][-1])
                    self._block_bytes[group] += part.nbytes // self._num_blocks

    def load(self, copies: Sequence[Copy]) -> None:
        """Copy chunks into KV blocks."""
        self._copy(copies, "load")

    def store(self, copies: Sequence[Copy]) -> None:
        """Copy KV blocks into chunks."""
        self._copy(copies, "store")

    def bytes_of(self, copy: Copy) -> int:
        """Bytes that a copy moves, over all layers of this worker."""
        return self._block_bytes[copy.group] * len(copy.blocks)

    def _group(self, layer: str) -> int:
        if layer not in self._group_of and len(self._of_group) > 1:
            raise ValueError(f"OffloadConnector: layer {layer} belongs to none of the model's KV cache groups")
        return self._group_of.get(layer, 0)

    def _copy(self, copies: Sequence[Copy], way: str) -> None:
        """Load or store each part of the cache; in the CPU's memory several in parallel, if there are enough bytes."""
        calls: list[Callable[[], None]] = []
        for group, parts in enumerate(self._of_group):
            if of_group := [copy for copy in copies if copy.group == group]:
                blocks, places = self._blocks(of_group), self._places(of_group, self._config.rows[group])
                calls += [partial(getattr(part, way), blocks, places) for part in parts]
        if self.device.type != "cpu" or sum(map(self.bytes_of, copies)) < MANY_BYTES:
            for call in calls:
                call()
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="offload")
        list(self._threads.map(lambda call: call(), calls))

    def _blocks(self, copies: Sequence[Copy]) -> torch.Tensor:
        """The concatenated block ids of these copies, on the device. They are copied from pinned memory, so that the CPU does
        not wait."""
        ids = [block for copy in copies for block in copy.blocks]
        on_gpu = self.device.type == "cuda"
        pinned = torch.empty(len(ids), dtype=torch.int64, pin_memory=on_gpu)
        return pinned.copy_(torch.tensor(ids)).to(self.device, non_blocking=True)

    def _places(self, copies: Sequence[Copy], rows: int) -> list[tuple[slice, slice]]:
        """Their positions among those blocks, and in host memory, in blocks. Adjacent ranges are merged."""
        places: list[tuple[slice, slice]] = []
        begin = 0
        for copy in copies:
            end, first = begin + len(copy.blocks), copy.slot * rows + copy.first
            last = first + len(copy.blocks)
            if places and places[-1][1].stop == first:
                before = places.pop()
                places.append((slice(before[0].start, end), slice(before[1].start, last)))
            else:
                places.append((slice(begin, end), slice(first, last)))
            begin = end
        return places


class _Rows:
    """A cache in the CPU's memory with one row of bytes for each block."""

    def __init__(self, cache: torch.Tensor, rows: int) -> None:
        """`cache` is [blocks, ...], and contiguous; `rows` is the number of blocks in host memory."""
        self._cache = cache.flatten(1).view(torch.uint8).numpy()
        self._slots = np.empty((rows, self._cache.shape[1]), np.uint8)  # in huge pages, if numpy gets them

    def load(self, blocks: torch.Tensor, places: Places) -> None:
        ids = blocks.numpy()
        for these, there in places:
            self._cache[ids[these]] = self._slots[there]

    def store(self, blocks: torch.Tensor, places: Places) -> None:
        ids = blocks.numpy()
        for these, there in places:
            np.take(self._cache, ids[these], axis=0, out=self._slots[there], mode="clip")  # other modes copy twice


class _Tensors:
    """A cache on a GPU, or with noncontiguous blocks. A store gathers all blocks of a step before it copies them, and a load
    copies all of them before it scatters them."""

    def __init__(self, cache: torch.Tensor, rows: int) -> None:
        self._cache = cache
        self._slots = torch.empty((rows, *cache.shape[1:]), dtype=cache.dtype, pin_memory=cache.is_cuda)

    def load(self, blocks: torch.Tensor, places: Places) -> None:
        gathered = [self._slots[there].to(self._cache.device, non_blocking=True) for _, there in places]
        self._cache.index_copy_(0, blocks, torch.cat(gathered))

    def store(self, blocks: torch.Tensor, places: Places) -> None:
        gathered = self._cache.index_select(0, blocks).split([these.stop - these.start for these, _ in places])
        for some, (_, there) in zip(gathered, places, strict=True):
            self._slots[there].copy_(some, non_blocking=True)
