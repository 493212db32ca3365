"""Reads the fingerprints of KV blocks: 16 words of a block, for all blocks of a step in one gather, or all of its bytes.

Twelve words are at offsets that all blocks share, spread over layers and tokens: six groups of two, 8 bits each. Another
block's content, a shift, zeros or an older content changes nearly all groups. Four words are at offsets derived from the
block's hash: a fault in the same part of every block shows in some of them. Instead of these, the sum of all bytes may be
read.

If engines of different tensor-parallel sizes hand over to each other, the shared offsets are in a
rank's first head: ranks with the same first head have the same groups.

A block's last token is omitted: on a full hit it is computed after all others were loaded, and its last bits may differ.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from kvtrail.connector.fingerprints.all_bytes import AllBytes
from kvtrail.connector.fingerprints.fingerprint import GROUPS, MIX, OWN_BITS, SHIFT, Array
from kvtrail.connector.kv_layout import Cache, blocks_first, tensors_of

EACH, DRAWN = 2, 4
COMMON = GROUPS * EACH
POOL = 4096
"""Number of offsets from which a hash selects."""
MAX_STORAGES = 8
"""Maximum number of storages that are read, if each layer has its own."""
_MIX, _SHIFT, _SPREAD = np.uint64(MIX), np.uint64(SHIFT), np.uint64(0x9E3779B97F4A7C15)
_GROUP_SHIFTS = np.arange(0, 8 * GROUPS, 8, dtype=np.uint64)
_DRAWN_SHIFTS = np.arange(64 - 12, 64 - 12 * (DRAWN + 1), -12).astype(np.uint64)
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _View(NamedTuple):
    """A part of a layer's cache, with sizes and strides in bytes.

    Attributes:
        storage: the number of its storage.
        begin: its offset in the storage.
        stride: the stride of a block.
        inner: the other dimensions, as (size, stride, whether it counts tokens). The last one is contiguous.
        heads: the stride of the dimension that counts heads; 0 if there is none, None if it is unknown.
    """

    storage: int
    begin: int
    stride: int
    inner: tuple[tuple[int, int, bool], ...]
    heads: int | None


class BlockFingerprints:
    """Reads fingerprints from the KV caches of some layers. On a GPU, reads are queued after the engine's work.

    Attributes:
        layout: a digest of the memory layout of a block: with equal layouts, equal bytes have equal fingerprints.
        sees_partial: whether a block that is loaded except for its last token can be judged: the layout shows the token's
            position.
        of_first_head: whether the shared offsets are in the rank's first head.
    """

    def __init__(
        self,
        caches: Mapping[str, Cache],
        num_blocks: int,
        block_size: int,
        *,
        heads: int = 0,
        all_bytes: bool = False,
    ) -> None:
        """
        Args:
            block_size: number of tokens in a block; 0 for recurrent states, which have no tokens.
            heads: number of heads of a block on this rank, if the shared offsets must be in the first one.
            all_bytes: whether the lower bits depend on all bytes.

        Raises:
            ValueError: no dimension of a layer counts the blocks; the text has the layer's name and shape.
        """
        self._all = AllBytes(caches, num_blocks) if all_bytes else None
        tensors = [tensor for cache in caches.values() for tensor in tensors_of(cache)]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
        chosen = [*storages]
        if len(chosen) > MAX_STORAGES:
            chosen = [chosen[n * (len(chosen) - 1) // (MAX_STORAGES - 1)] for n in range(MAX_STORAGES)]
        parts = [
            [
                _view(each, chosen.index(place), block_size, heads)
                for tensor in tensors_of(cache)
                if (place := tensor.untyped_storage().data_ptr()) in chosen
                for each in blocks_first(name, tensor, num_blocks)
            ]
            for name, cache in caches.items()
        ]
        layers = [layer for layer in parts if layer]
        views = [view for layer in layers for view in layer]
        self.sees_partial = not block_size or all(any(is_token for *_, is_token in view.inner) for view in views)
        self._word = next(word for word in (8, 4, 2, 1) if all(_fits(view, word) for view in views))
        dtype = _WORDS[self._word]
        lies = (self._word, [[(view.storage, view.inner) for view in layer] for layer in layers])
        self.layout = hashlib.blake2b(repr(lies).encode(), digest_size=8).hexdigest()
        self._device = tensors[0].device
        self._flat = [
            torch.empty(0, dtype=dtype, device=self._device).set_(storage, 0, (storage.nbytes() // self._word,), (1,))
            for storage in (storages[place] for place in chosen)
        ]
        self._arrays = [flat.numpy() for flat in self._flat] if self._device.type == "cpu" else []
        self.of_first_head = heads > 0 and all(view.heads is not None for view in views)
        common = _common(layers, self._word, of_first_head=self.of_first_head)
        places = np.array([*common, *_drawn(views, self._word)], dtype=np.int64)
        self._storage, self._begin, self._stride = places.T.copy()
        rng = random.Random("weights")
        self._weights = np.array([rng.getrandbits(64) | 1 for _ in range(COMMON + DRAWN)], dtype=np.uint64)

    def read(self, blocks: Sequence[int], hashes: Sequence[int]) -> Reading:
        """Start to read these blocks; `hashes` are the last 64 bits of their hashes."""
        places = np.empty((len(blocks), COMMON + DRAWN), dtype=np.int64)
        places[:, :COMMON] = np.arange(COMMON)
        drawn = (np.array(hashes, dtype=np.uint64) * _SPREAD)[:, None] >> _DRAWN_SHIFTS
        places[:, COMMON:] = COMMON + drawn % np.uint64(POOL)
        index = self._begin[places] + self._stride[places] * np.array(blocks, dtype=np.int64)[:, None]
        by_storage: list[Any] = [slice(None)]
        if len(self._flat) > 1:
            storages = self._storage[places].ravel()
            by_storage = [np.flatnonzero(storages == number) for number in range(len(self._flat))]
        parts = [self._gather(number, index.ravel()[at]) for number, at in enumerate(by_storage)]
        if self._all is not None:
            parts.append(self._all.sums(blocks))
        return Reading(index.shape, by_storage, parts)

    def values(self, readings: Sequence[Reading]) -> list[int]:
        """The fingerprint of each block of these readings. A block of zeros has 0."""
        mixed = _mixed(np.concatenate([reading.words() for reading in readings])) * self._weights
        groups = _mixed(mixed[:, :COMMON].reshape(-1, GROUPS, EACH).sum(2)) >> np.uint64(56)
        own = _mixed(mixed[:, COMMON:].sum(1))
        if self._all is not None:
            own = np.concatenate([reading.arrays()[-1] for reading in readings]).view(np.uint64)
        upper = (groups << _GROUP_SHIFTS).sum(1)
        return [one << OWN_BITS | other for one, other in zip(upper.tolist(), own.tolist(), strict=True)]

    def _gather(self, storage: int, index: Array) -> Any:
        if self._arrays:
            return self._arrays[storage].take(index)
        places = torch.from_numpy(index)
        if self._device.type == "cuda":
            places = places.pin_memory()
        return torch.take(self._flat[storage], places.to(self._device, non_blocking=True))

    def side_stream(self) -> Any:
        """A context in which calls do not wait for queued work; None on a CPU, where no work is queued."""
        return torch.cuda.stream(torch.cuda.Stream(self._device)) if self._device.type == "cuda" else None


class Reading:
    """Words of blocks that are being copied to the host, after the queued work; on a CPU they are available at once. The sums
    of all bytes may follow them."""

    def __init__(self, shape: tuple[int, ...], places: Sequence[Any], parts: Sequence[torch.Tensor | Array]) -> None:
        """`places` are the positions of each part's words among all words."""
        self._shape, self._places, self._parts = shape, places, parts
        self._copied: torch.cuda.Event | None = None
        if any(isinstance(part, torch.Tensor) and part.is_cuda for part in parts):
            self._parts = [_pinned(part) if isinstance(part, torch.Tensor) else part for part in parts]
            self._copied = torch.cuda.Event()
            self._copied.record()

    def is_ready(self) -> bool:
        """Whether the words are available without a wait."""
        return self._copied is None or self._copied.query()

    def arrays(self) -> list[Array]:
        """All parts, in order."""
        if self._copied is not None:
            self._copied.synchronize()
        return [part if isinstance(part, np.ndarray) else part.cpu().numpy() for part in self._parts]

    def words(self) -> Array:
        """The words: uint64, [blocks, words]."""
        words = np.empty(self._shape, dtype=np.uint64)
        flat = words.reshape(-1)
        for place, part in zip(self._places, self.arrays(), strict=False):
            flat[place] = part
        return words


def _pinned(numbers: torch.Tensor) -> torch.Tensor:
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    return host


def _mixed(numbers: Array) -> Array:
    mixed: Array = (numbers ^ (numbers >> _SHIFT)) * _MIX
    return mixed


def _view(view: torch.Tensor, storage: int, block_size: int, heads: int) -> _View:
    """`view` is [blocks, ...], in memory order. If the attention kernel's blocks are smaller, a block consists of several of
    them, and the last token of each is left out."""
    size = view.element_size()
    counts = {block_size, *(block_size // n for n in view.shape[1:] if n > 1 and block_size % n == 0)}
    tokens = max((count for count in view.shape[1:] if count in counts), default=0)
    inner = [
        (count, stride * size, count == tokens > 1)
        for count, stride in zip(view.shape[1:], view.stride()[1:], strict=True)
    ]
    if not inner or inner[-1][1] != size:
        inner.append((1, size, False))
    inner[-1] = (inner[-1][0] * size, 1, inner[-1][2])
    strides = [stride for count, stride, is_token in inner[:-1] if count == heads and not is_token]
    of_heads = 0 if heads == 1 else strides[0] if len(strides) == 1 else None
    return _View(storage, int(view.storage_offset()) * size, view.stride(0) * size, tuple(inner), of_heads)


def _fits(view: _View, word: int) -> bool:
    """Whether the view is aligned to words of `word` bytes."""
    *outer, (length, _, _) = view.inner
    return not any(each % word for each in (view.begin, view.stride, length, *(stride for _, stride, _ in outer)))


def _common(layers: Sequence[Sequence[_View]], word: int, *, of_first_head: bool) -> Iterator[tuple[int, int, int]]:
    """The offsets that all blocks share: each in another part of a block's tokens, from the first layer to the last, in keys
    and values alternately if these are separate."""
    rng = random.Random("common")
    tokens = rng.sample(range(COMMON), COMMON)
    for n in range(COMMON):
        layer = layers[n * (len(layers) - 1) // (COMMON - 1)]
        view = layer[n % len(layer)]
        if of_first_head:  # the drawn offsets must not depend on the number of heads
            *outer, last = view.inner
            view = view._replace(inner=(*(each for each in outer if each[0] > 1 and each[1] != view.heads), last))
        yield _place(view, word, rng, (tokens[n] + rng.random()) / COMMON)


def _drawn(views: Sequence[_View], word: int) -> Iterator[tuple[int, int, int]]:
    rng = random.Random("drawn")
    for _ in range(POOL):
        yield _place(rng.choice(views), word, rng, rng.random())


def _place(view: _View, word: int, rng: random.Random, token: float) -> tuple[int, int, int]:
    """A word: the number of its storage, its offset in block 0, and a block's stride, in words. `token` is its relative
    position among the block's tokens, from 0 to 1."""
    at = view.begin
    *outer, (length, _, is_token) = view.inner
    for size, stride, counts_tokens in outer:
        at += stride * (int(token * (size - 1)) if counts_tokens else rng.randrange(size))
    words = length // word
    at += word * (int(token * max(1, words - 1)) if is_token else rng.randrange(words))
    return view.storage, at // word, view.stride // word
