"""Full fingerprints of KV blocks: 64 bits a block and layer, which depend on every bit and on its place.

A block's bytes are rows of 256 signed numbers. Two weights for each place in a row give two exact 32-bit sums a row, and
each of them has an odd random weight of 64 bits. Two flips of the same bit always differ within a row, since no two places
have the same pair of weights, not even up to the sign; a plain dot product in 64 bits would lose two flips of the highest
bit. A matrix product of 8-bit numbers reads a block once, at about half the speed of a copy (`benchmarks/fingerprint.py`).

The weights are always the same: engines that hold the same bytes have the same fingerprints.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch

logger = logging.getLogger("vllm.kvtrail")

ROW = 256
"""Bytes with a weighted sum that cannot leave 32 bits: 256 * 128 * 127 is less than 2**31."""
SUMS = 2
"""Weighted sums of a row."""
TILE_BYTES = 1 << 21
"""Gathered at once."""
LEAST_ROWS = 17
"""Rows that CUDA's product of 8-bit matrices takes at least."""
_CUDA_COLUMNS = 8
_MIX, _SHIFT = 0x2545F4914F6CDD1D, 29
Cache = torch.Tensor | Sequence[torch.Tensor]
"""What a layer keeps in blocks: KV in one tensor, or the several tensors of a recurrent state."""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class FullFingerprints:
    """Reads the KV caches of some layers. Everything is queued on the current stream of their device.

    Attributes:
        layers: their names, in order.
        block_bytes: bytes of a block over all of them.
        is_on_cpu: whether a copy is over when the call that made it returns.
    """

    def __init__(self, caches: Mapping[str, Cache], num_blocks: int) -> None:
        """Layers that share a tensor count once.

        Raises:
            ValueError: no dimension of a layer counts the blocks; with its name and shape.
        """
        self._caches, self._num_blocks = caches, num_blocks
        self._alone: dict[str, FullFingerprints] = {}
        """Those of one layer each, once they are needed."""
        parts: dict[str, list[_Part]] = {}
        seen: set[tuple[object, ...]] = set()
        for name, kept in caches.items():
            tensors = tensors_of(kept)
            place = tuple((each.data_ptr(), each.shape, each.stride()) for each in tensors)
            if place not in seen:
                seen.add(place)
                parts[name] = [_Part(view) for each in tensors for view in blocks_first(name, each, num_blocks)]
        self.layers = tuple(parts)
        self.block_bytes = sum(part.bytes for each in parts.values() for part in each)
        self._device = tensors_of(next(iter(caches.values())))[0].device
        self.is_on_cpu = self._device.type == "cpu"
        self._product = _exact_product(self._device)
        self._by_size: dict[int, list[_Part]] = {}
        for part in (part for each in parts.values() for part in each):
            self._by_size.setdefault(part.bytes, []).append(part)
        self._stacks = {size: _stack(each) for size, each in self._by_size.items()}
        self._buffers: dict[int, torch.Tensor] = {}
        self._rows = self._rows_of(list(parts.values()))
        self._of_layers = _words("layers", len(self.layers), self._device)

    def of(self, blocks: Sequence[int]) -> torch.Tensor:
        """The fingerprints of these blocks: int64, [blocks, layers]. A block of zeros has 0."""
        if not blocks:
            return torch.zeros((0, len(self.layers)), dtype=torch.int64, device=self._device)
        ids = torch.tensor(blocks, device=self._device)
        none = torch.zeros((1, len(blocks)), dtype=torch.int64, device=self._device)
        sums = torch.cat([*(self._sums(size, parts, ids) for size, parts in self._by_size.items()), none])
        first, *more = sums[self._rows]
        for part in more:
            first = _mixed(first) + part
        return _mixed(first).t()

    def folded(self, fingerprints: torch.Tensor) -> torch.Tensor:
        """One for all layers of each block: int64, [blocks]. A block of zeros has 0."""
        return (fingerprints * self._of_layers).sum(1)

    def read(self, blocks: Sequence[int]) -> FullReading:
        """The fingerprints of these blocks on their way to the host."""
        return self.reading(blocks, self.of(blocks))

    def reading(self, blocks: Sequence[int], fingerprints: torch.Tensor) -> FullReading:
        """These fingerprints, which are those of the blocks, on their way to the host."""
        return FullReading(blocks, torch.cat([self.folded(fingerprints).unsqueeze(1), fingerprints], 1))

    def of_layer(self, name: str, blocks: Sequence[int]) -> torch.Tensor:
        """The fingerprints of these blocks in one of the layers: int64, [blocks]."""
        if name not in self._alone:
            self._alone[name] = FullFingerprints({name: self._caches[name]}, self._num_blocks)
        return self._alone[name].of(blocks)[:, 0]

    def layer_by_layer(self, blocks: Sequence[int]) -> LayerByLayer:
        """To read these blocks in one layer after the other."""
        return LayerByLayer(self, blocks)

    def fill_with_zeros(self, blocks: Sequence[int]) -> None:
        """Overwrite these blocks in all layers."""
        ids = torch.tensor(blocks, device=self._device)
        for parts in self._by_size.values():
            for part in parts:
                part.fill_with_zeros(ids)

    def _sums(self, size: int, parts: Sequence[_Part], ids: torch.Tensor) -> torch.Tensor:
        """The weighted sums of the blocks of these parts, all of as many bytes: int64, [parts, blocks]. A tile has several
        blocks of one part, or all blocks of several."""
        rows = -(-size // ROW)
        weights = _row_weights(rows, self._device)
        at_once = max(1, TILE_BYTES // size)
        step, together = min(len(ids), at_once), max(1, at_once // len(ids))
        buffer = self._buffer(at_once, size)
        result = torch.empty((len(parts), len(ids)), dtype=torch.int64, device=self._device)
        for first in range(0, len(parts), together):
            these = parts[first : first + together]
            for begin in range(0, len(ids), step):
                some = ids[begin : begin + step]
                count = len(some)
                tile = buffer[: len(these) * count]
                if (stack := self._stacks[size]) is not None:
                    torch.index_select(stack[first : first + together], 1, some, out=tile.view(-1, count, size))
                else:
                    for n, part in enumerate(these):
                        part.gather(some, tile[n * count : (n + 1) * count])
                products = self._product(tile.view(-1, ROW), _weights(self._device)).view(SUMS, len(tile), rows)
                sums = (products * weights).sum((0, 2)).view(len(these), count)
                result[first : first + together, begin : begin + count] = sums
        return result

    def _buffer(self, blocks: int, size: int) -> torch.Tensor:
        """A tile for blocks of `size` bytes: int8, [blocks, whole rows], zeros after the block. Always the same, since fresh
        memory would take as long as the reading."""
        if size not in self._buffers:
            width = -(-size // ROW) * ROW
            self._buffers[size] = torch.zeros((blocks, width), dtype=torch.int8, device=self._device)
        return self._buffers[size]

    def _rows_of(self, parts: Sequence[Sequence[_Part]]) -> torch.Tensor:
        """Where the sums of each layer's first part are, then of each one's second: [most parts of a layer, layers]. Those
        that a layer does not have are in a row of zeros, the last."""
        order = [part for each in self._by_size.values() for part in each]
        most = max(map(len, parts))
        rows = [[order.index(each[nth]) if nth < len(each) else len(order) for each in parts] for nth in range(most)]
        return torch.tensor(rows, device=self._device)


class FullReading:
    """FullFingerprints of blocks, of all layers and by layer, that are copied to the host behind the work that is queued."""

    def __init__(self, blocks: Sequence[int], rows: torch.Tensor) -> None:
        self._blocks = blocks
        self._copied: torch.cuda.Event | None = None
        self._rows = rows
        if rows.is_cuda:
            self._rows = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            self._rows.copy_(rows, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def is_ready(self) -> bool:
        """Whether nobody has to wait for them."""
        return self._copied is None or self._copied.query()

    def values(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """By block the fingerprint of all layers, and that of each."""
        if self._copied is not None:
            self._copied.synchronize()
        return {block: (row[0], tuple(row[1:])) for block, row in zip(self._blocks, self._rows.tolist(), strict=True)}


class LayerByLayer:
    """FullFingerprints of blocks that are read in one layer after the other."""

    def __init__(self, fingerprints: FullFingerprints, blocks: Sequence[int]) -> None:
        self._fingerprints, self._blocks = fingerprints, blocks
        self._read: dict[str, torch.Tensor] = {}

    def read(self, name: str) -> FullReading | None:
        """Read a layer. Returns them when that was the last one that was missing."""
        layers = self._fingerprints.layers
        if name not in layers or name in self._read:
            return None
        self._read[name] = self._fingerprints.of_layer(name, self._blocks)
        if len(self._read) < len(layers):
            return None
        return self._fingerprints.reading(self._blocks, torch.stack([self._read[each] for each in layers], 1))


def tensors_of(cache: Cache) -> Sequence[torch.Tensor]:
    """Those of a layer."""
    return (cache,) if isinstance(cache, torch.Tensor) else cache


def blocks_first(name: str, cache: torch.Tensor, num_blocks: int) -> list[torch.Tensor]:
    """Views of a layer's cache with a first dimension that counts blocks, the others in the order in which they lie in
    memory: of [blocks, ...] one, and of [2, blocks, ...], keys and values apart, two. A block may be several of the attention
        kernel's.

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


def _as_it_lies(view: torch.Tensor) -> torch.Tensor:
    inner = sorted(range(1, view.dim()), key=view.stride, reverse=True)
    return view.permute(0, *inner)


class _Part:
    """A view of [blocks, ...].

    Attributes:
        bytes: of a block.
        rows: the same as [blocks, bytes], where a block lies in one piece.
    """

    def __init__(self, view: torch.Tensor) -> None:
        self.bytes = view[0].numel() * view.element_size()
        self.rows = view.flatten(1).view(torch.int8) if view[0].is_contiguous() else None
        self._view = view

    def gather(self, blocks: torch.Tensor, out: torch.Tensor) -> None:
        """Write the blocks' bytes into the rows of `out`, which may be longer."""
        if self.rows is not None and out.shape[1] == self.bytes:
            torch.index_select(self.rows, 0, blocks, out=out)
        else:
            out[:, : self.bytes] = self._view[blocks].flatten(1).view(torch.int8)

    def fill_with_zeros(self, blocks: torch.Tensor) -> None:
        self._view[blocks] = torch.zeros((), dtype=self._view.dtype, device=self._view.device)


def _stack(parts: Sequence[_Part]) -> torch.Tensor | None:
    """Parts that lie at equal distances in one piece of memory, as vLLM's layers do: [parts, blocks, bytes]. One call gathers
    blocks of all of them."""
    views = [part.rows for part in parts if part.rows is not None and part.bytes % ROW == 0]
    if len(views) < max(2, len(parts)):
        return None
    first, second, *_ = views
    distance = second.storage_offset() - first.storage_offset()
    for n, view in enumerate(views):
        is_same = view.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if (
            not is_same
            or view.stride() != first.stride()
            or view.storage_offset() != first.storage_offset() + n * distance
        ):
            return None
    return first.as_strided((len(views), *first.shape), (distance, *first.stride())) if distance > 0 else None


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Others for others, 0 for 0: sums of them do not lose what sums of the numbers would."""
    return (numbers ^ (numbers >> _SHIFT)) * _MIX


def _product_of_bytes(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[rows, 256] and [2, 256], both int8: [2, rows], int32, on a CPU, where one product is slower than two of a vector."""
    columns = rows.t()
    return torch.cat([torch._int_mm(each.unsqueeze(0), columns) for each in weights])


def _product_on_cuda(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same on CUDA, where the product wants more rows and columns than there may be."""
    if len(rows) < LEAST_ROWS:
        return _product_in_words(rows, weights)
    columns = torch.nn.functional.pad(weights, (0, 0, 0, _CUDA_COLUMNS - SUMS))
    return torch._int_mm(rows, columns.t())[:, :SUMS].t().contiguous()


def _product_in_words(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same with numbers of 32 bits: slower, and anywhere."""
    return torch.stack([(rows.to(torch.int32) * each).sum(1, dtype=torch.int32) for each in weights])


@cache
def _exact_product(device: torch.device) -> Product:
    """The fastest that is exact here, extreme numbers included: some processors' 8-bit products saturate."""
    fast = _product_on_cuda if device.type == "cuda" else _product_of_bytes
    weights = _weights(device)
    rows = torch.arange(3 * LEAST_ROWS * ROW, device=device).view(-1, ROW).mul(37).to(torch.int8)
    rows[::2] = torch.where(weights[0] > 0, 127, -128).to(torch.int8)
    rows[1::4] = torch.where(weights[1] > 0, -128, 127).to(torch.int8)
    try:
        if torch.equal(fast(rows, weights), _product_in_words(rows, weights)):
            return fast
        reason = "it is not exact"
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        reason = str(error)
    logger.warning(
        "kvtrail: fingerprints take a slower way on %s, because of torch's product of bytes: %s", device, reason
    )
    return _product_in_words


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Of the places in a row: int8, [2, 256]. No two places have the same pair, nor the same but for the sign."""
    pairs = sorted(
        ((first, second) for first in range(1, 128) for second in range(-127, 128) if second),
        key=lambda pair: hashlib.blake2b(b"%d,%d" % pair).digest(),
    )[:ROW]
    return torch.tensor(pairs, dtype=torch.int8, device=device).t().contiguous()


@cache
def _row_weights(rows: int, device: torch.device) -> torch.Tensor:
    """Of the sums of a block's rows: [2, 1, rows]."""
    return _words("rows", SUMS * rows, device).view(rows, SUMS).t().contiguous().unsqueeze(1)


@cache
def _words(purpose: str, count: int, device: torch.device) -> torch.Tensor:
    """Odd random numbers: int64, [count]. More of them begin with the same."""
    drawn = bytearray(hashlib.shake_256(purpose.encode()).digest(8 * count))
    return torch.frombuffer(drawn, dtype=torch.int64).bitwise_or(1).to(device)
