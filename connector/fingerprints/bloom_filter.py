"""A Bloom filter of block hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

FILTER_BITS = 1 << 23
_SHIFTS, _GROUP = (0, 20, 40), 0x9E37
Key = tuple[int, int]
"""The number of a KV cache group, and the last 64 bits of a block's hash."""


class BloomFilter:
    """A set of keys that never grows: those that were added are in it, and once there are many, some others too."""

    def __init__(self) -> None:
        self._bits = bytearray(FILTER_BITS // 8)
        self._is_empty = True

    def add(self, key: Key) -> None:
        self._is_empty = False
        for bit in _bits_of(key):
            self._bits[bit >> 3] |= 1 << (bit & 7)

    def add_all(self, group: int, numbers: np.ndarray[Any, np.dtype[Any]]) -> None:
        """Add keys of one group: uint64."""
        bits = np.frombuffer(self._bits, dtype=np.uint8)
        for shift in _SHIFTS:
            places = ((numbers >> np.uint64(shift)) + np.uint64(group * _GROUP % FILTER_BITS)) % np.uint64(FILTER_BITS)
            np.bitwise_or.at(bits, places >> np.uint64(3), (1 << (places & np.uint64(7))).astype(np.uint8))
        self._is_empty = self._is_empty and not len(numbers)

    def __contains__(self, key: Key) -> bool:
        return not self._is_empty and all(self._bits[bit >> 3] >> (bit & 7) & 1 for bit in _bits_of(key))


def _bits_of(key: Key) -> Iterator[int]:
    """A hash is random already: parts of it are."""
    group, number = key
    for shift in _SHIFTS:
        yield ((number >> shift) + group * _GROUP) % FILTER_BITS
