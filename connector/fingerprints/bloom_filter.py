"""A Bloom filter of block hashes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvtrail.connector.fingerprints.fingerprint import Array

FILTER_BITS = 1 << 23
_SHIFTS = (0, 20, 40)


class BloomFilter:
    """A set of random numbers of 64 bits that never grows: those that were added are in it, and once there are many, some
    others too."""

    def __init__(self) -> None:
        self._bits = bytearray(FILTER_BITS // 8)
        self._is_empty = True

    def add(self, number: int) -> None:
        self._is_empty = False
        for bit in _bits_of(number):
            self._bits[bit >> 3] |= 1 << (bit & 7)

    def add_all(self, numbers: Array) -> None:
        """Add many: uint64."""
        bits = np.frombuffer(self._bits, dtype=np.uint8)
        for shift in _SHIFTS:
            places = (numbers >> np.uint64(shift)) % np.uint64(FILTER_BITS)
            np.bitwise_or.at(bits, places >> np.uint64(3), (1 << (places & np.uint64(7))).astype(np.uint8))
        self._is_empty = self._is_empty and not len(numbers)

    def __contains__(self, number: int) -> bool:
        return not self._is_empty and all(self._bits[bit >> 3] >> (bit & 7) & 1 for bit in _bits_of(number))


def _bits_of(number: int) -> Iterator[int]:
    """It is random already: parts of it are."""
    for shift in _SHIFTS:
        yield (number >> shift) % FILTER_BITS
