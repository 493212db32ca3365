"""What a fingerprint of a KV block is: 112 bits, of which the upper 64 are reported.

The upper 48 depend on words at places that all blocks have in common, in six groups of 8 bits: they show whose content a
block holds. The lower 64 say nothing about another block: they depend on words at places that the block's hash draws, or on
all bytes of the block.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
GROUPS = 6
OWN_BITS = 64
"""The lower bits."""
UNREPORTED_BITS = 48
"""Those of them that are not reported."""
MAX_COMMON_GROUPS = 2
"""Groups that two contents may have in common by accident."""
ROW = Struct(">QQI")
"""How a fingerprint is reported: the hash, the fingerprint, and the block's first token."""
MIX, SHIFT = 0x2545F4914F6CDD1D, 29


def equal_groups(one: int, other: int) -> int:
    """The groups in which two fingerprints are equal."""
    return sum((one ^ other) >> OWN_BITS >> 8 * n & 0xFF == 0 for n in range(GROUPS))
