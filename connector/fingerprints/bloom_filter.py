"""A Bloom filter of block hashes."""

from __future__ import annotations

from collections.abc import Iterator

FILTER_BITS = 1 << 23


class BloomFilter:
    """A set of random 64-bit numbers of constant size: it contains all added numbers and, after many additions, some others
    too."""

    def __init__(self) -> None:
        self._bits = bytearray(FILTER_BITS // 8)

    def add(self, number: int) -> None:
        for bit in _bits_of(number):
            self._bits[bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, number: int) -> bool:
        return all(self._bits[bit >> 3] >> (bit & 7) & 1 for bit in _bits_of(number))


def _bits_of(number: int) -> Iterator[int]:
    """It is random already: parts of it are."""
    for shift in (0, 20, 40):
        yield (number >> shift) % FILTER_BITS
