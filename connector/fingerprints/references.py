"""The fingerprints that were computed under each hash, in a table that never grows: 16 bytes a block.

A hash has a bucket of eight places, and in it a set of fingerprints: results of the same tokens may differ in their last bits
from batch to batch. Where a bucket is full, another hash is forgotten, with all of its fingerprints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from kvtrail.connector.fingerprints.bloom_filter import BloomFilter
from kvtrail.connector.fingerprints.fingerprint import MAX_COMMON_GROUPS, OWN_BITS, Array, equal_groups
from kvtrail.connector.fingerprints.result import CONTAMINATED, UNKNOWN, ZEROS, Holds, Match, Origin
from kvtrail.tracer.events import ids

BUCKETS, WAYS = 1 << 17, 8
REQUESTS = 4096
"""Requests with remembered names."""
MAX_SERIALS = (1 << 20) - 1
MAX_NUMBERS = (1 << 12) - 1
"""Blocks of a request that are remembered with their number."""
FEW = 8
"""Blocks that are entered one by one."""
NOBODY = "", 0
Number = TypeVar("Number", int, Array)
_CONTAMINATED = 0xFFFFFFFF
_GROUP = 0x9E3779B97F4A7C15
_ALL = (1 << 64) - 1


class References:
    """What one rank's blocks hold, by hash. Hashes and contents, which are fingerprints, are unsigned numbers of 64 bits.

    Nothing is a mismatch for not being what was computed until a load has brought just that: a store may lose precision. What
    is left out, because there is no room or because nobody could know, makes its hash incomplete: nothing is a mismatch
    then for not being known.

    Attributes:
        own: whether this engine alone writes to the connector's store.
        is_exact: whether a load has.
    """

    def __init__(self, *, own: bool, units: Mapping[int, int]) -> None:
        """
        Args:
            own: this engine alone writes to the connector's store.
            units: tokens by which blocks are counted, by the number of the KV cache group.
        """
        self.own, self._units, self._incomplete = own, units, BloomFilter()
        self._tags = np.zeros((BUCKETS, WAYS), dtype=np.uint32)
        self._origins = np.zeros((BUCKETS, WAYS), dtype=np.uint32)
        self._contents = np.zeros((BUCKETS, WAYS), dtype=np.uint64)
        self._turn = 0
        self._computes_zeros = self.is_exact = False
        self._serial = 0
        self._serials: dict[int, dict[str, int]] = {}
        """Numbers of requests, by KV cache group."""
        self._names: list[tuple[str, int]] = [NOBODY] * REQUESTS
        """Of the latest requests: the id, and the group."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self._tags))

    @property
    def bytes(self) -> int:
        """Of the whole table."""
        return self._tags.nbytes + self._origins.nbytes + self._contents.nbytes

    def contains(self, group: int, hashes: Array, contents: Array) -> Array:
        """Whether each content was computed under its hash."""
        rows, tags = _at(group, hashes)
        found = (self._tags[rows] == tags[:, None]) & (self._contents[rows] == contents[:, None])
        found &= self._origins[rows] != _CONTAMINATED
        right: Array = found.any(1)
        return right

    def may_mismatch(self, group: int, hashes: Array, contents: Array) -> bool:
        """Whether one of these contents, which were not computed under their hashes, is known to be wrong."""
        rows, tags = _at(group, hashes)
        known = (self._tags[rows] == tags[:, None]) & (self._contents[rows] == contents[:, None])
        return bool(known.any()) or not contents.all()

    def first_token(self, group: int, number: Number) -> Number:
        """Of the block with this number in a request; of a recurrent state, the tokens that it has seen."""
        return number * self._units[group]

    def add(
        self, group: int, hashes: Array, contents: Array, request_ids: Sequence[str], numbers: Sequence[int]
    ) -> None:
        """Blocks were computed under these hashes, by requests that have met no mismatch; `numbers` are the blocks'."""
        rows, tags = _at(group, hashes)
        self._computes_zeros = self._computes_zeros or not contents.all()
        same = (self._tags[rows] == tags[:, None]) & (self._contents[rows] == contents[:, None])
        fresh = np.flatnonzero(~(same & (self._origins[rows] != _CONTAMINATED)).any(1))
        serials = self._serials.setdefault(group, {})
        origins = [self._origin_of(group, serials, request_ids[n], numbers[n]) for n in fresh.tolist()]
        if len(fresh) > FEW:  # those alone in their buckets at once
            _, first = np.unique(rows[fresh], return_index=True)
            free = self._tags[rows[fresh[first]]] == 0
            first = first[free.any(1) & ~same[fresh[first]].any(1)]
            alone = fresh[first]
            ways = (self._tags[rows[alone]] == 0).argmax(1)
            self._tags[rows[alone], ways], self._contents[rows[alone], ways] = tags[alone], contents[alone]
            self._origins[rows[alone], ways] = np.array(origins, dtype=np.uint32)[first]
            fresh, origins = np.delete(fresh, first), np.delete(origins, first).tolist()
        for n, origin in zip(fresh.tolist(), origins, strict=True):
            self._enter(int(rows[n]), int(tags[n]), int(contents[n]), origin)

    def add_contaminated(self, group: int, hash_: int, content: int) -> None:
        """A block was computed under the hash after a mismatch."""
        rows, tags = _at(group, np.array([hash_], dtype=np.uint64))
        row, tag = int(rows[0]), int(tags[0])
        if not ((self._tags[row] == tag) & (self._contents[row] == np.uint64(content))).any():
            self._enter(row, tag, content, _CONTAMINATED)

    def mark_incomplete(self, group: int, hash_: int) -> None:
        """A block under the hash may hold what is right, or not."""
        if self.own:  # else nothing is wrong for not being known
            self._incomplete.add(_key(*_of_hash(group, hash_)))

    def clear(self) -> None:
        """Other weights compute other contents."""
        rows, ways = np.nonzero(self._tags)
        keys = self._tags[rows, ways].astype(np.uint64) * np.uint64(BUCKETS) + rows.astype(np.uint64)
        self._incomplete.add_all(keys * np.uint64(_GROUP))
        self._tags[:] = 0
        self.is_exact = self._computes_zeros = False

    def is_complete(self, group: int, hash_: int) -> bool:
        """Whether all contents are known that were computed under the hash, and there is one."""
        row, tag = _of_hash(group, hash_)
        is_right = (self._tags[row] == tag) & (self._origins[row] != _CONTAMINATED)
        return bool(is_right.any()) and _key(row, tag) not in self._incomplete

    def match(self, group: int, hash_: int, content: int, *, is_whole: bool, names: bool) -> Match:
        """Whether a block holds what was computed under its hash: True, what it is instead, or None where nobody knows. Of a
        block that is not `is_whole`, the last token was computed after its load: only the upper bits count, and some groups
        of them may legally differ. `names`: the origin of what it holds is worth a search."""
        row, tag = _of_hash(group, hash_)
        of_hash = self._tags[row] == tag
        contents, origins = self._contents[row][of_hash], self._origins[row][of_hash]
        differing = contents ^ np.uint64(content)
        same = origins[(differing if is_whole else differing >> np.uint64(OWN_BITS)) == 0]
        if len(same):
            return True if (same != _CONTAMINATED).any() else CONTAMINATED
        if content == 0 and not self._computes_zeros:
            return ZEROS
        right = contents[origins != _CONTAMINATED]
        if not (self.own and len(right)) or _key(row, tag) in self._incomplete:
            return None
        if not is_whole and equal_groups(right, content) > MAX_COMMON_GROUPS:
            return None
        holds = self._holds(content, row, tag) if names or not self.is_exact else UNKNOWN
        return holds if holds is not UNKNOWN or self.is_exact else None

    def _holds(self, content: int, row: int, tag: int) -> Holds:
        """The origin of this content, if it was computed under another hash. The lower bits are not comparable: the groups
        are."""
        groups = np.uint64(content >> OWN_BITS)
        found = ((self._contents >> np.uint64(OWN_BITS)) == groups) & (self._tags != 0)
        found[row] &= self._tags[row] != tag
        for origin in self._origins[found].tolist():
            if origin == _CONTAMINATED:
                return CONTAMINATED
            serial, number = divmod(origin, MAX_NUMBERS + 1)
            if origin and self._serial - serial < REQUESTS:
                request_id, group = self._names[serial % REQUESTS]
                return Origin(request_id, self.first_token(group, number), group)
        return UNKNOWN

    def _origin_of(self, group: int, serials: dict[str, int], request_id: str, number: int) -> int:
        """Where a block was computed, in 32 bits; `serials` are those of its group."""
        if number > MAX_NUMBERS:
            return 0
        request_id = ids.bounded(request_id)  # thousands are kept
        serial = serials.get(request_id)
        if serial is None:
            if self._serial == MAX_SERIALS - 1:
                self._restart()
            self._serial = serial = self._serial + 1
            forgotten, of_group = self._names[serial % REQUESTS]
            self._serials.get(of_group, {}).pop(forgotten, None)
            self._names[serial % REQUESTS] = request_id, group
            serials[request_id] = serial
        return serial * (MAX_NUMBERS + 1) + number

    def _restart(self) -> None:
        """All numbers have been given: what was computed until now has no name any more."""
        self._origins[self._origins != _CONTAMINATED] = 0
        for serials in self._serials.values():
            serials.clear()
        self._serial, self._names = 0, [NOBODY] * REQUESTS

    def _enter(self, row: int, tag: int, content: int, origin: int) -> None:
        """Into a free place, or that of a hash that is forgotten for it, or its own contaminated one."""
        tags = self._tags[row]
        same = np.flatnonzero((tags == tag) & (self._contents[row] == np.uint64(content)))
        free = same if len(same) else np.flatnonzero(tags == 0)
        if not len(free):
            self._turn = (self._turn + 1) % WAYS
            forgotten = int(tags[self._turn])
            self._incomplete.add(_key(row, forgotten))
            tags[tags == forgotten] = 0
            free = np.flatnonzero(tags == 0)
        way = free[0]
        tags[way], self._contents[row, way], self._origins[row, way] = tag, content, origin


def _at(group: int, hashes: Array) -> tuple[Array, Array]:
    """The bucket of each hash, and what tells it from others there."""
    mixed = hashes ^ np.uint64(group * _GROUP & _ALL)
    return mixed % np.uint64(BUCKETS), np.maximum(mixed >> np.uint64(32), np.uint64(1)).astype(np.uint32)


def _of_hash(group: int, hash_: int) -> tuple[int, int]:
    mixed = hash_ ^ (group * _GROUP & _ALL)
    return mixed % BUCKETS, max(mixed >> 32, 1)


def _key(row: int, tag: int) -> int:
    """Of a hash in a filter, which has random numbers."""
    return (tag * BUCKETS + row) * _GROUP & _ALL
