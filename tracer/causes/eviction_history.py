"""A compact table of forgotten keys with the last event of each, with few errors."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

BUCKET = 8
"""Number of keys per slot; the oldest is replaced first."""
BUCKETS = 1 << 18
"""Two million keys in 10 MiB."""


class EvictionHistory:
    """Keys of 8 bytes, each with a code from 1 to 255, the latest remembered.

    A key is identified by 24 of its bits: for a key that was never entered, it returns a code in less than one of two million
    cases.
    """

    def __init__(self) -> None:
        self._tags: array[int] | None = None
        self._codes = self._next = bytearray()

    def __bool__(self) -> bool:
        return self._tags is not None

    def add(self, keys: Iterable[bytes], codes: Iterable[int]) -> None:
        """Store each key with its code, replacing an earlier code."""
        if self._tags is None:
            self._tags = array("I", bytes(4 * BUCKET * BUCKETS))
            self._codes, self._next = bytearray(BUCKET * BUCKETS), bytearray(BUCKETS)
        tags, remembered, following = self._tags, self._codes, self._next
        for number, code in zip(map(int.from_bytes, keys), codes, strict=True):
            bucket, tag = number % BUCKETS, number >> 40 & 0xFFFFFF
            first = bucket * BUCKET
            here = tags[first : first + BUCKET]
            if tag in here:
                at = first + here.index(tag)
            else:
                at = first + following[bucket]
                tags[at] = tag
                following[bucket] = (following[bucket] + 1) % BUCKET
            remembered[at] = code

    def codes(self, keys: Iterable[bytes]) -> list[int]:
        """The code of each key; 0 if it was never entered, or so long ago that it was forgotten."""
        tags, remembered = self._tags, self._codes
        if tags is None:
            return [0 for _ in keys]
        found = []
        for number in map(int.from_bytes, keys):
            first, tag = number % BUCKETS * BUCKET, number >> 40 & 0xFFFFFF
            here = tags[first : first + BUCKET]
            found.append(remembered[first + here.index(tag)] if tag in here else 0)
        return found
