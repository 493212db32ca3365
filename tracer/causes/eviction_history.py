"""What is left of keys that were forgotten: a small table that knows with few errors what happened to each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

BUCKET = 8
"""Keys that share a place; the one that came first leaves it first."""
BUCKETS = 1 << 18
"""Two million keys in 10 MiB."""


class EvictionHistory:
    """Keys of 8 bytes, each with a code from 1 to 255, the latest remembered.

    A key is known by 24 of its bits: of a key that was never there it says that it was in less than one of two million cases.
    """

    def __init__(self) -> None:
        self._tags: array[int] | None = None
        self._codes = self._next = bytearray()

    def __bool__(self) -> bool:
        return self._tags is not None

    def add(self, keys: Iterable[bytes], codes: Iterable[int]) -> None:
        """Remember each key with its code, instead of an earlier one."""
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
        """The code of each key; 0 if it was never there, or so long ago that it was forgotten here, too."""
        tags, remembered = self._tags, self._codes
        if tags is None:
            return [0 for _ in keys]
        found = []
        for number in map(int.from_bytes, keys):
            first, tag = number % BUCKETS * BUCKET, number >> 40 & 0xFFFFFF
            here = tags[first : first + BUCKET]
            found.append(remembered[first + here.index(tag)] if tag in here else 0)
        return found
