"""The slim fingerprints that were computed under each hash, in a table that never grows: 16 bytes a block.

A hash has a bucket of eight places, and in it a set of fingerprints: results of the same tokens may differ in their last bits
from batch to batch. Where a bucket is full, another hash is forgotten, with all of its fingerprints.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvtrail.connector.fingerprints.slim import DRAWN_BITS, Array, equal_groups
from kvtrail.connector.fingerprints.truth import POISON, UNKNOWN, ZEROS, Filter, Place, Wrong
from kvtrail.tracer.events import ids

BUCKETS, WAYS = 1 << 17, 8
REQUESTS = 4096
"""Requests of which it is remembered what they are called."""
MOST_SERIALS = (1 << 20) - 1
MOST_NUMBERS = (1 << 12) - 1
"""Blocks of a request that are remembered with their number."""
MOST_NEAR = 2
"""Groups that two contents may have in common by accident."""
FEW = 8
"""Blocks that are entered one by one."""
_POISONED = 0xFFFFFFFF
_GROUP = 0x9E3779B97F4A7C15
_ALL = (1 << 64) - 1
_SLIM = -1
"""In a filter's keys, where others have the number of a KV cache group."""


class SlimReference:
    """What one rank's blocks hold, by hash. Hashes and contents are unsigned numbers of 64 bits.

    Nothing is wrong for not being what was computed until a load has brought just that: a store may lose precision.

    Attributes:
        is_exact: whether a load has.
    """

    def __init__(self, *, own: bool, incomplete: Filter) -> None:
        """`own`: this engine alone writes to the connector's store. `incomplete` gets the hashes of which something may be
        unknown."""
        self._own, self._incomplete = own, incomplete
        self._tags = np.zeros((BUCKETS, WAYS), dtype=np.uint32)
        self._places = np.zeros((BUCKETS, WAYS), dtype=np.uint32)
        self._contents = np.zeros((BUCKETS, WAYS), dtype=np.uint64)
        self._turn = 0
        self._computes_zeros = self.is_exact = False
        self._serial = 0
        self._serials: dict[str, int] = {}
        self._names: list[tuple[str, str]] = [("", "")] * REQUESTS
        """Of the latest requests: the id, and what KV and hashes depend on besides tokens."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self._tags))

    @property
    def bytes(self) -> int:
        """Of the whole table."""
        return self._tags.nbytes + self._places.nbytes + self._contents.nbytes

    def are_right(self, group: int, hashes: Array, contents: Array) -> Array:
        """Whether each content was computed under its hash."""
        rows, tags = _at(group, hashes)
        found = (self._tags[rows] == tags[:, None]) & (self._contents[rows] == contents[:, None])
        found &= self._places[rows] != _POISONED
        right: Array = found.any(1)
        return right

    def may_be_wrong(self, group: int, hashes: Array, contents: Array) -> bool:
        """Whether one of these contents, which were not computed under their hashes, is known to be wrong."""
        rows, tags = _at(group, hashes)
        known = (self._tags[rows] == tags[:, None]) & (self._contents[rows] == contents[:, None])
        return bool(known.any()) or not contents.all()

    def learn(
        self, group: int, hashes: Array, contents: Array, requests: Sequence[Place], numbers: Sequence[int]
    ) -> None:
        """Blocks were computed under these hashes, by requests that have met nothing wrong; `numbers` are the blocks'."""
        rows, tags = _at(group, hashes)
        self._computes_zeros = self._computes_zeros or not contents.all()
        same = (self._tags[rows] == tags[:, None]) & (self._contents[rows] == contents[:, None])
        fresh = np.flatnonzero(~(same & (self._places[rows] != _POISONED)).any(1))
        places = [self._place(requests[n], numbers[n]) for n in fresh.tolist()]
        if len(fresh) > FEW:  # those alone in their buckets at once
            _, first = np.unique(rows[fresh], return_index=True)
            free = self._tags[rows[fresh[first]]] == 0
            first = first[free.any(1) & ~same[fresh[first]].any(1)]
            alone = fresh[first]
            ways = (self._tags[rows[alone]] == 0).argmax(1)
            self._tags[rows[alone], ways], self._contents[rows[alone], ways] = tags[alone], contents[alone]
            self._places[rows[alone], ways] = np.array(places, dtype=np.uint32)[first]
            fresh, places = np.delete(fresh, first), np.delete(places, first).tolist()
        for n, place in zip(fresh.tolist(), places, strict=True):
            self._enter(int(rows[n]), int(tags[n]), int(contents[n]), place)

    def poison(self, group: int, hash_: int, content: int) -> None:
        """A block was computed under the hash after something wrong."""
        rows, tags = _at(group, np.array([hash_], dtype=np.uint64))
        row, tag = int(rows[0]), int(tags[0])
        if not ((self._tags[row] == tag) & (self._contents[row] == np.uint64(content))).any():
            self._enter(row, tag, content, _POISONED)

    def doubt(self, group: int, hash_: int) -> None:
        """A block under the hash may hold what is right, or not."""
        self._incomplete.add(_key(*_of_hash(group, hash_)))

    def forget(self) -> None:
        """Other weights compute other contents."""
        rows, ways = np.nonzero(self._tags)
        keys = self._tags[rows, ways].astype(np.uint64) * np.uint64(BUCKETS) + rows.astype(np.uint64)
        self._incomplete.add_all(_SLIM, keys * np.uint64(_GROUP))
        self._tags[:] = 0
        self.is_exact = self._computes_zeros = False

    def knows(self, group: int, hash_: int) -> bool:
        """Whether all contents are known that were computed under the hash, and there is one."""
        row, tag = _of_hash(group, hash_)
        is_right = (self._tags[row] == tag) & (self._places[row] != _POISONED)
        return bool(is_right.any()) and _key(row, tag) not in self._incomplete

    def judge(self, group: int, hash_: int, content: int, *, is_whole: bool, names: bool) -> Wrong | bool | None:
        """Whether a block holds what was computed under its hash: True, what it is instead, or None where nobody knows. Of a
        block that is not `is_whole`, some may legally differ. `names`: whose content it holds is worth a search."""
        row, tag = _of_hash(group, hash_)
        of_hash = self._tags[row] == tag
        contents, places = self._contents[row][of_hash], self._places[row][of_hash]
        same = places[contents == np.uint64(content)]
        if len(same):
            return True if same[0] != _POISONED else Wrong(POISON, ())
        if content == 0 and not self._computes_zeros:
            return Wrong(ZEROS, ())
        right = contents[places != _POISONED]
        if not (self._own and len(right)) or _key(row, tag) in self._incomplete:
            return None
        if not is_whole and equal_groups(right, content) > MOST_NEAR:
            return None
        holds = self._holds(content) if names or not self.is_exact else UNKNOWN
        return Wrong(holds, ()) if holds is not UNKNOWN or self.is_exact else None

    def _holds(self, content: int) -> str | Place:
        """Whose content this is. What was drawn by the other hash is not comparable: the groups are."""
        groups = np.uint64(content >> DRAWN_BITS)
        found = np.flatnonzero(((self._contents >> np.uint64(DRAWN_BITS)) == groups) & (self._tags != 0))
        for place in self._places.ravel()[found].tolist():
            if place == _POISONED:
                return POISON
            serial, number = divmod(place, MOST_NUMBERS + 1)
            if place and self._serial - serial < REQUESTS:
                request_id, identity = self._names[serial % REQUESTS]
                return Place(request_id, number, identity)
        return UNKNOWN

    def _place(self, of: Place, number: int) -> int:
        if number > MOST_NUMBERS:
            return 0
        request_id = ids.bounded(of.request_id)  # thousands are kept
        serial = self._serials.get(request_id)
        if serial is None:
            if self._serial == MOST_SERIALS - 1:
                self._restart()
            self._serial = serial = self._serial + 1
            self._serials.pop(self._names[serial % REQUESTS][0], None)
            self._names[serial % REQUESTS] = request_id, of.identity
            self._serials[request_id] = serial
        return serial * (MOST_NUMBERS + 1) + number

    def _restart(self) -> None:
        """All numbers have been given: what was computed until now has no name any more."""
        self._places[self._places != _POISONED] = 0
        self._serial, self._serials, self._names = 0, {}, [("", "")] * REQUESTS

    def _enter(self, row: int, tag: int, content: int, place: int) -> None:
        """Into a free place, or that of a hash that is forgotten for it, or its own poisoned one."""
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
        tags[way], self._contents[row, way], self._places[row, way] = tag, content, place


def _at(group: int, hashes: Array) -> tuple[Array, Array]:
    """The bucket of each hash, and what tells it from others there."""
    mixed = hashes ^ np.uint64(group * _GROUP & _ALL)
    return mixed % np.uint64(BUCKETS), np.maximum(mixed >> np.uint64(32), np.uint64(1)).astype(np.uint32)


def _of_hash(group: int, hash_: int) -> tuple[int, int]:
    mixed = hash_ ^ (group * _GROUP & _ALL)
    return mixed % BUCKETS, max(mixed >> 32, 1)


def _key(row: int, tag: int) -> tuple[int, int]:
    """Of a hash in a filter, whose keys are random numbers."""
    return _SLIM, (tag * BUCKETS + row) * _GROUP & _ALL
