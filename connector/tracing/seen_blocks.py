"""Which blocks have been in a request of this launch: a small table that only errs to "may have been"."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_BYTES = 3
BITS = 1 << 8 * _BYTES
"""One for each block, in 2 MiB. With a million blocks it errs once in seventeen times; with many millions it says nothing."""


class SeenBlocks:
    """Remembers blocks by their hashes, and never forgets one."""

    def __init__(self) -> None:
        self._bits = bytearray(BITS // 8)

    def enter(self, hashes: Sequence[bytes]) -> None:
        """These are in a request."""
        bits = self._bits
        for each in hashes:
            place = int.from_bytes(each[-_BYTES:], "big")
            bits[place >> 3] |= 1 << (place & 7)

    def first_of(self, chain: Sequence[bytes]) -> int:
        """How many of a chain's first blocks may have been in a request. Where one was, so were all before it."""
        return bisect_left(chain, True, key=lambda each: not self._may_hold(each))

    def _may_hold(self, block: bytes) -> bool:
        place = int.from_bytes(block[-_BYTES:], "big")
        return bool(self._bits[place >> 3] & 1 << (place & 7))
