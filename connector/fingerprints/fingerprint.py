"""What a fingerprint of a KV block is: 64 bits.

The upper 48 depend on words at places that all blocks have in common, in six groups of 8 bits: they show whose content a
block holds. The lower 16 say nothing about another block: they depend on words at places that the block's hash draws, or on
all bytes of the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
GROUPS = 6
OWN_BITS = 16
"""The lower bits."""
MAX_COMMON_GROUPS = 2
"""Groups that two contents may have in common by accident."""
ROW = np.dtype([("hash", ">u8"), ("content", ">u8"), ("token", ">u4")])
"""How a fingerprint is reported."""
MIX, SHIFT = 0x2545F4914F6CDD1D, 29
_GROUP_SHIFTS = np.arange(OWN_BITS, 64, 8, dtype=np.uint64)


class Reading(Protocol):
    """Blocks that are being read."""

    def is_ready(self) -> bool:
        """Whether nobody has to wait for them."""


class Fingerprints(Protocol):
    """Reads the fingerprints of blocks of one KV cache group. On a GPU they are queued behind the engine's work.

    Attributes:
        num_blocks: of the caches.
        sees_partial: whether a block that is loaded but for its last token can be judged: the layout shows where that is.
    """

    num_blocks: int
    sees_partial: bool

    def read(self, blocks: Sequence[int], hashes: Array) -> Any:
        """A `Reading` of these blocks; `hashes` are the last 64 bits of theirs, uint64."""

    def values(self, readings: Sequence[Any]) -> Array:
        """The fingerprint of each block of these readings, uint64. A block of zeros has 0."""


def equal_groups(contents: Array, content: int) -> int:
    """The most groups in which one of these fingerprints is equal to this one."""
    differing = contents ^ np.uint64(content)
    groups = (differing[:, None] >> _GROUP_SHIFTS) & np.uint64(0xFF)
    return int((groups == 0).sum(1).max(initial=0))
