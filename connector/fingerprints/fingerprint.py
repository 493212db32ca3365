"""The fingerprint of a KV block: 112 bits; the upper 64 are reported.

The upper 48 bits depend on words at offsets that all blocks share, in six groups of 8 bits: they identify the content of a
block. The lower 64 are not comparable between blocks: they depend on words at offsets derived from the block's hash, or on
all bytes of the block.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
GROUPS = 6
OWN_BITS = 64
"""Number of lower bits."""
UNREPORTED_BITS = 48
"""Number of lower bits that are not reported."""
MAX_COMMON_GROUPS = 2
"""Maximum number of groups that two contents may share by accident."""
ROW = Struct(">QQI")
"""The reported form of a fingerprint: the hash, the fingerprint, and the block's first token."""
MIX, SHIFT = 0x2545F4914F6CDD1D, 29


def equal_groups(one: int, other: int) -> int:
    """The number of groups in which two fingerprints are equal."""
    return sum((one ^ other) >> OWN_BITS >> 8 * n & 0xFF == 0 for n in range(GROUPS))
