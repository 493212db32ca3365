"""What is left of keys that were forgotten: a small table that knows with few errors what became of each."""

from __future__ import annotations

from array import array

BUCKET = 8
"""Keys that share a place; the one that came first leaves it first."""
BUCKETS = 1 << 18
"""Two million keys in 8 MiB."""
_CODE_BITS, _CODES = 8, 0xFF


class Past:
    """Keys of 8 bytes, each with a code from 1 to 255, the latest remembered.

    A key is known by 24 of its bits: of a key that was never there it says that it was in less than one of two million cases.
    """

    def __init__(self) -> None:
        self._slots: array[int] | None = None
        self._next = bytearray()

    def __bool__(self) -> bool:
        return self._slots is not None

    def add(self, key: bytes, code: int) -> None:
        """Remember a key with this code, instead of an earlier one."""
        if self._slots is None:
            self._slots, self._next = array("I", bytes(4 * BUCKET * BUCKETS)), bytearray(BUCKETS)
        bucket, tag = _place(key)
        first = bucket * BUCKET
        for at in range(first, first + BUCKET):
            if self._slots[at] >> _CODE_BITS == tag:
                self._slots[at] = tag << _CODE_BITS | code
                return
        self._slots[first + self._next[bucket]] = tag << _CODE_BITS | code
        self._next[bucket] = (self._next[bucket] + 1) % BUCKET

    def code(self, key: bytes) -> int:
        """The code of a key; 0 if it was never there, or so long ago that it was forgotten here, too."""
        if self._slots is None:
            return 0
        bucket, tag = _place(key)
        for slot in self._slots[bucket * BUCKET : (bucket + 1) * BUCKET]:
            if slot >> _CODE_BITS == tag and slot & _CODES:
                return slot & _CODES
        return 0


def _place(key: bytes) -> tuple[int, int]:
    number = int.from_bytes(key)
    return number % BUCKETS, number >> 40 & 0xFFFFFF
