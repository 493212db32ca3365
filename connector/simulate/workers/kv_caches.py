"""The KV caches of one worker, in memory, and what they should hold, bit by bit."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from kvtrail.connector.simulate.workers.contents import UNWRITTEN, Secret


class LayerCache:
    """The KV cache of one layer on one tensor-parallel rank.

    Attributes:
        layer, rank, group: what it belongs to; a rank has a part of the heads.
        is_state: whether a block holds one recurrent state, in one slot, instead of the KV of its tokens.
        tensor: the cache, as connectors see it: its first dimension counts blocks, the third one the slots of a block.
        secret: of this layer's KV.
    """

    def __init__(
        self, layer: str, rank: int, group: int, shape: tuple[int, ...], seed: int, *, is_state: bool = False
    ) -> None:
        import torch

        self.layer, self.rank, self.group, self.is_state = layer, rank, group, is_state
        heads = range(rank * shape[1], (rank + 1) * shape[1])
        self.secret = Secret([f"{seed}/{head}/{layer}" for head in heads], shape[3:], is_state=is_state)
        self.tensor: Any = torch.full(shape, -1.0)
        self._held = self.tensor.numpy().view(np.int32)
        self._should = self._held.copy()

    def write(self, blocks: Any, slots: Any, numbers: Any) -> None:
        """The model writes the KV of these tokens."""
        words = self.secret.words(numbers)
        self._held[blocks, :, slots] = words
        self._should[blocks, :, slots] = words

    def copy(self, source: int, target: int) -> None:
        """vLLM copies a block."""
        for array in (self._held, self._should):
            array[target] = array[source]

    def expect(self, blocks: Any, slots: Any, numbers: Any) -> None:
        """Somebody is to write the KV of these tokens; until then nothing is there."""
        self._held[blocks, :, slots] = self.secret.words(np.full_like(numbers, UNWRITTEN))
        self._should[blocks, :, slots] = self.secret.words(numbers)

    def differing(self) -> Any:
        """The blocks that do not hold what they should."""
        held, should = (array.reshape(-1).view(np.uint64) for array in (self._held, self._should))
        if np.array_equal(held, should):
            return np.empty(0, np.int64)
        rows = (len(self._held), -1)
        return (held.reshape(rows) != should.reshape(rows)).any(axis=1).nonzero()[0]

    def wrong_slots(self, block: int) -> Any:
        """For each token of a block, whether its KV is wrong."""
        wrong = self._held[block] != self._should[block]
        return wrong.any(axis=tuple(each for each in range(wrong.ndim) if each != 1))

    def words(self, block: int, slot: int) -> Any:
        """The KV of one token, as it is."""
        return self._held[block, :, slot]

    @property
    def slots(self) -> int:
        """Places of a block that hold something of their own: its tokens, or one state."""
        return int(self._held.shape[2])

    def checksum(self) -> int:
        """Of what the cache holds."""
        return zlib.adler32(self._held.data)

    def accept(self, blocks: Any) -> None:
        """From now on these blocks should hold what they do."""
        self._should[blocks] = self._held[blocks]

    def written(self, blocks: Any) -> bool:
        """Whether anybody has written to blocks that were expected to be written."""
        return bool((self._held[blocks] != self.secret.words(np.array([UNWRITTEN], np.int32)).flat[0]).any())
