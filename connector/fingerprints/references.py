"""The fingerprints that were computed for each hash, in bounded tables.

Several may be right for one hash: results of the same tokens may differ in their last bits from batch to batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from kvtrail.connector.fingerprints.fingerprint import MAX_COMMON_GROUPS, OWN_BITS, equal_groups
from kvtrail.connector.fingerprints.result import CONTAMINATED, UNKNOWN, ZEROS, Holds, Match, Origin

HASHES = 1 << 18
"""Maximum number of hashes with remembered fingerprints, about 140 bytes each. The oldest are forgotten first."""
CONTENTS = 8
"""Maximum number of fingerprints of a hash."""
ORIGINS = 1 << 16
"""Maximum number of contents, the latest ones, that can be identified when found for another hash."""
DROPPED = 1024
"""Number of entries of a full table that are dropped at once."""
FILTER_BITS = 1 << 23
_SHIFTS = (0, 20, 40)
"""Parts of a number that are its places in the filter: a hash is random, so its parts are."""
_GROUP = 0x9E3779B97F4A7C15
_ALL = (1 << 64) - 1


class References:
    """The contents of one rank's blocks, by hash. Hashes are unsigned numbers of 64 bits, contents are fingerprints.

    Unknown content is not a mismatch until a load has copied exactly the computed content, since a store may lose precision.
    A content that is omitted, because the table is full or it could not be known, makes its hash incomplete: unknown content
    is then not a mismatch.

    Attributes:
        own: whether this engine alone writes to the connector's store.
        is_exact: whether a load has copied exactly the computed content.
    """

    def __init__(self, *, own: bool, units: Mapping[int, int]) -> None:
        """
        Args:
            own: whether this engine alone writes to the connector's store.
            units: `Group.unit` by the number of the KV cache group.
        """
        self.own, self._units, self._incomplete = own, units, _BloomFilter()
        self._right: dict[int, int] = {}
        """The content that was computed first for each hash, by key."""
        self._others: dict[int, tuple[int, ...]] = {}
        """The other contents that were computed for a hash. Few hashes have any."""
        self._contaminated: dict[int, tuple[int, ...]] = {}
        """Contents that were computed after a mismatch."""
        self._origins: dict[int, tuple[int, str | None, int, int]] = {}
        """The origins of contents, by their upper bits: the key, the request (None after a mismatch), the block's number in
        it, and the KV cache group."""
        self._computes_zeros = self.is_exact = False

    def __len__(self) -> int:
        return len(self._right)

    def first_token(self, group: int, number: int) -> int:
        """The first token of the block with this number in a request; for a recurrent state, the number of tokens that it has
        seen."""
        return number * self._units[group]

    def contains(self, group: int, hash_: int, content: int) -> bool:
        """Whether the content was computed for the hash."""
        return content in self._contents(_key(group, hash_))

    def add(self, group: int, blocks: Iterable[tuple[int, int, int, int]], request_id: str) -> None:
        """Add blocks that were computed by a request without a mismatch: each block's number in the request, its id, its hash
        and its content. A step adds hundreds."""
        right, origins, of_group = self._right, self._origins, group * _GROUP & _ALL
        for number, _, hash_, content in blocks:
            key = hash_ ^ of_group
            if key not in right:
                right[key] = content
            elif content in (contents := self._contents(key)):
                continue
            else:
                if len(contents) == CONTENTS:
                    self._incomplete.add([key])
                right[key], *others = *contents[1 - CONTENTS :], content
                self._others[key] = tuple(others)
            origins[content >> OWN_BITS] = key, request_id, number, group
            if not content:
                self._computes_zeros = True
        while len(right) > HASHES:
            forgotten = _drop_oldest(right)
            self._incomplete.add(forgotten)
            for key in forgotten:
                self._others.pop(key, None)
        while len(origins) > ORIGINS:
            _drop_oldest(origins)

    def add_contaminated(self, group: int, hash_: int, content: int) -> None:
        """Add a block that was computed for the hash after a mismatch."""
        key = _key(group, hash_)
        self._contaminated[key] = (*self._contaminated.get(key, ())[1 - CONTENTS :], content)
        self._origins.setdefault(content >> OWN_BITS, (key, None, 0, group))
        if len(self._contaminated) > ORIGINS:
            _drop_oldest(self._contaminated)

    def mark_incomplete(self, group: int, hashes: Sequence[int]) -> None:
        """Note that blocks with these hashes may hold right or wrong content."""
        if self.own:  # otherwise an unknown content is never wrong
            self._incomplete.add([_key(group, each) for each in hashes])

    def clear(self) -> None:
        """Forget all contents: other weights compute other contents."""
        self._incomplete.add([*self._right])
        for table in (self._right, self._others, self._contaminated, self._origins):
            table.clear()
        self.is_exact = self._computes_zeros = False

    def is_complete(self, group: int, hash_: int) -> bool:
        """Whether all contents that were computed for the hash are known, and there is at least one."""
        key = _key(group, hash_)
        return key in self._right and key not in self._incomplete

    def match(self, group: int, hash_: int, content: int, *, is_whole: bool) -> Match:
        """Compare a block's content with the contents that were computed for its hash: True if it is one of them, otherwise
        its actual content, or None if that is unknown. If the block is not `is_whole`, its last token was computed after the
        load: only the upper bits count, and some groups may legally differ."""
        key = _key(group, hash_)
        right = self._contents(key)
        if _among(right, content, is_whole):
            return True
        if _among(self._contaminated.get(key, ()), content, is_whole):
            return CONTAMINATED
        if content == 0 and not self._computes_zeros:
            return ZEROS
        if not (self.own and right) or key in self._incomplete:
            return None
        if not is_whole and any(equal_groups(each, content) > MAX_COMMON_GROUPS for each in right):
            return None
        holds = self._holds(content, key)
        return holds if holds is not UNKNOWN or self.is_exact else None

    def _contents(self, key: int) -> tuple[int, ...]:
        """All known contents that were computed for a hash."""
        return (self._right[key], *self._others.get(key, ())) if key in self._right else ()

    def _holds(self, content: int, key: int) -> Holds:
        """The origin of this content, if it was computed for another hash. Only the groups in the upper bits are
        comparable."""
        of_key, request_id, number, group = self._origins.get(content >> OWN_BITS, (key, None, 0, 0))
        if of_key == key:
            return UNKNOWN
        return CONTAMINATED if request_id is None else Origin(request_id, self.first_token(group, number), group)


class _BloomFilter:
    """A set of random 64-bit numbers of constant size: it contains all added numbers and, after many additions, some others
    too."""

    def __init__(self) -> None:
        self._bits = bytearray(FILTER_BITS // 8)

    def add(self, numbers: Sequence[int]) -> None:
        """Add these numbers. Adding a thousand takes little longer than adding one."""
        places = np.array(numbers, dtype=np.uint64)[:, None] >> np.array(_SHIFTS, dtype=np.uint64) & (FILTER_BITS - 1)
        bits = np.frombuffer(self._bits, dtype=np.uint8)
        np.bitwise_or.at(bits, places >> 3, (1 << (places & 7)).astype(np.uint8))

    def __contains__(self, number: int) -> bool:
        places = [number >> shift & (FILTER_BITS - 1) for shift in _SHIFTS]
        return all(self._bits[place >> 3] >> (place & 7) & 1 for place in places)


def _key(group: int, hash_: int) -> int:
    """A hash, and the number of its KV cache group."""
    return hash_ ^ (group * _GROUP & _ALL)


def _among(contents: Sequence[int], content: int, is_whole: bool) -> bool:
    """Whether a content is one of these, optionally ignoring the lower bits."""
    return content in contents or (not is_whole and any(each >> OWN_BITS == content >> OWN_BITS for each in contents))


def _drop_oldest(table: dict[int, Any]) -> list[int]:
    """Drop the oldest entries, some at a time; returns their keys."""
    dropped = [*islice(table, DROPPED)]
    for key in dropped:
        del table[key]
    return dropped
