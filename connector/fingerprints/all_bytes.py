"""Sums of all bytes of KV blocks, which depend on every bit and its position.

A block's bytes are rows of 256 signed numbers. Two weights for each position in a row give two exact 32-bit sums per row, and
each sum has an odd random weight of 64 bits. Two flips of the same bit always differ within a row, since no two positions
have the same pair of weights, not even up to the sign; a plain dot product in 64 bits would miss two flips of the highest
bit. A matrix product of 8-bit numbers reads a block once, at about half the speed of a copy (`benchmarks/fingerprint.py`).

The weights are always the same: engines that hold the same bytes have the same fingerprints.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch

from kvtrail.connector.fingerprints.fingerprint import MIX, SHIFT
from kvtrail.connector.kv_layout import Cache, views_of

logger = logging.getLogger("vllm.kvtrail")

ROW = 256
"""Number of bytes whose weighted sum fits into 32 bits: 256 * 128 * 127 is less than 2**31."""
SUMS = 2
"""Number of weighted sums of a row."""
TILE_BYTES = 1 << 21
"""Maximum number of bytes that are gathered at once."""
LEAST_ROWS = 17
"""Minimum number of rows for CUDA's product of 8-bit matrices."""
_CUDA_COLUMNS = 8
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class AllBytes:
    """Reads the KV caches of some layers. Everything is queued on the current stream of their device."""

    def __init__(self, caches: Mapping[str, Cache], num_blocks: int) -> None:
        """
        Raises:
            ValueError: no dimension of a layer counts the blocks; the text has the layer's name and shape.
        """
        parts = [_Part(view) for view in views_of(caches, num_blocks)]
        self._device = parts[0].device
        self._product = _exact_product(self._device)
        self._by_size: dict[int, list[_Part]] = {}
        for part in parts:
            self._by_size.setdefault(part.bytes, []).append(part)
        self._buffers: dict[int, torch.Tensor] = {}
        self._of_parts = _words("parts", len(parts), self._device).unsqueeze(1)

    def sums(self, blocks: Sequence[int]) -> torch.Tensor:
        """The sums of all bytes of these blocks: int64, [blocks]. A block of zeros has 0."""
        if not blocks:
            return torch.zeros(0, dtype=torch.int64, device=self._device)
        ids = torch.tensor(blocks, device=self._device)
        sums = torch.cat([self._sums(size, parts, ids) for size, parts in self._by_size.items()])
        return _mixed((_mixed(sums) * self._of_parts).sum(0))

    def _sums(self, size: int, parts: Sequence[_Part], ids: torch.Tensor) -> torch.Tensor:
        """The weighted sums of the blocks of these parts, which have equal sizes: int64, [parts, blocks]. A tile has several
        blocks of one part, or all blocks of several parts."""
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
                for n, part in enumerate(these):
                    part.gather(some, tile[n * count : (n + 1) * count])
                products = self._product(tile.view(-1, ROW), _weights(self._device)).view(SUMS, len(tile), rows)
                sums = (products * weights).sum((0, 2)).view(len(these), count)
                result[first : first + together, begin : begin + count] = sums
        return result

    def _buffer(self, blocks: int, size: int) -> torch.Tensor:
        """A tile for blocks of `size` bytes: int8, [blocks, whole rows], zeros after the block. It is reused, since fresh
        memory would take as long as reading."""
        if size not in self._buffers:
            width = -(-size // ROW) * ROW
            self._buffers[size] = torch.zeros((blocks, width), dtype=torch.int8, device=self._device)
        return self._buffers[size]


class _Part:
    """A view of [blocks, ...].

    Attributes:
        bytes: number of bytes in a block.
        rows: the same as [blocks, bytes], if a block is contiguous.
    """

    def __init__(self, view: torch.Tensor) -> None:
        self.bytes = view[0].numel() * view.element_size()
        self.device = view.device
        self.rows = view.flatten(1).view(torch.int8) if view[0].is_contiguous() else None
        self._view = view

    def gather(self, blocks: torch.Tensor, out: torch.Tensor) -> None:
        """Write the blocks' bytes into the rows of `out`, which may be longer."""
        if self.rows is not None and out.shape[1] == self.bytes:
            torch.index_select(self.rows, 0, blocks, out=out)
        else:
            out[:, : self.bytes] = self._view[blocks].flatten(1).view(torch.int8)


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Mix each number, mapping 0 to 0, so that sums do not cancel."""
    return (numbers ^ (numbers >> SHIFT)) * MIX


def _product_of_bytes(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[rows, 256] and [2, 256], both int8: [2, rows], int32, on a CPU, where one product is slower than two of a vector."""
    columns = rows.t()
    return torch.cat([torch._int_mm(each.unsqueeze(0), columns) for each in weights])


def _product_on_cuda(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same on CUDA, where the product needs a minimum number of rows and columns."""
    if len(rows) < LEAST_ROWS:
        return _product_in_words(rows, weights)
    columns = torch.nn.functional.pad(weights, (0, 0, 0, _CUDA_COLUMNS - SUMS))
    return torch._int_mm(rows, columns.t())[:, :SUMS].t().contiguous()


def _product_in_words(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same with numbers of 32 bits: slower, on any device."""
    return torch.stack([(rows.to(torch.int32) * each).sum(1, dtype=torch.int32) for each in weights])


@cache
def _exact_product(device: torch.device) -> Product:
    """The fastest product that is exact on this device, including extreme numbers: some processors' 8-bit products
    saturate."""
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
    """The weights of the positions in a row: int8, [2, 256]. No two positions have the same pair, not even up to the sign."""
    pairs = sorted(
        ((first, second) for first in range(1, 128) for second in range(-127, 128) if second),
        key=lambda pair: hashlib.blake2b(b"%d,%d" % pair).digest(),
    )[:ROW]
    return torch.tensor(pairs, dtype=torch.int8, device=device).t().contiguous()


@cache
def _row_weights(rows: int, device: torch.device) -> torch.Tensor:
    """The weights of the sums of a block's rows: [2, 1, rows]."""
    return _words("rows", SUMS * rows, device).view(rows, SUMS).t().contiguous().unsqueeze(1)


@cache
def _words(purpose: str, count: int, device: torch.device) -> torch.Tensor:
    """Odd random numbers: int64, [count]."""
    drawn = bytearray(hashlib.shake_256(purpose.encode()).digest(8 * count))
    return torch.frombuffer(drawn, dtype=torch.int64).bitwise_or(1).to(device)
