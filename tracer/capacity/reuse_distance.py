"""Reuse distances: the smallest capacity of a least-recently-used store at which each access to a chunk is a hit.

Mattson's stack algorithm: a chunk is in a store of C chunks if fewer than C other chunks were used since its last use. A
prefix is a hit up to its first missing chunk, so a chunk of it needs the capacity at which all chunks before it are held as
well: the largest distance so far along the prefix.

Long histories are sampled by chunk (SHARDS, Waldspurger et al., FAST 2015): every access to chunks with a hashed key below
a threshold is followed, distances and tokens are scaled by the sampling rate, and the threshold is lowered whenever too many
chunks are held. At capacities for which only a handful of chunks is followed, the curve is a rough guess.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from kvtrail.tracer.capacity.accesses import Access

SPACE = 1 << 32
"""Hashed keys are below this number."""
WHOLE = -1
"""The group of all chunks, if nothing is sampled."""
GROUPS = 16
"""Number of groups into which the chunks of a sample are sorted, to estimate its error."""


class ReuseDistance(NamedTuple):
    """Tokens, and the smallest capacity in chunks at which they are hits; infinite if the chunk was never used before.
    In a sample, the tokens are scaled by the sampling rate."""

    group: int
    chunks: float
    tokens: float


class ReuseDistances:
    """Follows accesses to chunks, in order."""

    def __init__(self, *, most_chunks: int, evicts_tails_first: bool = True) -> None:
        """
        Args:
            most_chunks: follow at most this many chunks at a time.
            evicts_tails_first: the store counts a prefix's first chunk as used last, so prefixes are evicted from their ends.
        """
        self._heads_stay = evicts_tails_first
        self._most_chunks = most_chunks
        self._threshold = SPACE
        self._stack = _Stack()
        self._by_hash: list[tuple[int, bytes]] = []
        """The followed chunks, largest hash first."""

    @property
    def rate(self) -> float:
        """The sampling rate: the share of all chunks that is followed."""
        return self._threshold / SPACE

    @property
    def is_sample(self) -> bool:
        """Whether some chunks are not followed."""
        return self._threshold < SPACE

    def enter(self, access: Access) -> list[ReuseDistance]:
        """Enter an access; returns the reuse distances of its wanted chunks, or of a sample of them if `is_sample`."""
        self._make_room()
        wanted, rate, threshold, largest = access.wanted, self.rate, self._threshold, 0.0
        is_sample = self.is_sample
        followed, distances = [], []
        for n, hashed in _below(threshold, access.keys):
            key = access.keys[n]
            if access.used is None or n < access.used:
                followed.append((hashed, key))
            distance = self._stack.distance(key)
            largest = max(largest, inf if distance is None else (distance - 1) / rate + 1)
            if n < len(wanted) and wanted[n]:
                distances.append(ReuseDistance(hashed % GROUPS if is_sample else WHOLE, largest, wanted[n] / rate))
        for hashed, key in reversed(followed) if self._heads_stay else followed:
            if self._stack.use(key):
                heappush(self._by_hash, (-hashed, key))
        return distances

    def _make_room(self) -> None:
        """Lower the threshold while too many chunks are followed."""
        while len(self._stack) > self._most_chunks:
            self._threshold = -self._by_hash[0][0]
            while self._by_hash and -self._by_hash[0][0] >= self._threshold:
                self._stack.forget(heappop(self._by_hash)[1])

    def reset(self) -> None:
        """Enter that the store was emptied."""
        self._stack = _Stack()
        self._by_hash.clear()


def _below(threshold: int, keys: Sequence[bytes]) -> list[tuple[int, int]]:
    """The positions of the keys with a hash below the threshold, and this hash. It is the last bytes of the key, which is a
    hash already."""
    return [(n, hashed) for n, key in enumerate(map(int.from_bytes, keys)) if (hashed := key % SPACE) < threshold]


class _Stack:
    """Chunks by the moment of their last use. The number of chunks used since then is the number of later moments."""

    def __init__(self) -> None:
        self._moment: dict[bytes, int] = {}
        self._moments: list[int] = []
        """The moments of all chunks, in order."""
        self._now = 0

    def __len__(self) -> int:
        return len(self._moment)

    def distance(self, key: bytes) -> int | None:
        """The capacity at which this chunk is still held; None if it was never used."""
        moment = self._moment.get(key)
        return None if moment is None else len(self._moments) - bisect_left(self._moments, moment)

    def use(self, key: bytes) -> bool:
        """Mark a chunk as the most recently used one; returns whether it is new."""
        is_new = key not in self._moment
        if not is_new:
            self.forget(key)
        self._now += 1
        self._moment[key] = self._now
        self._moments.append(self._now)
        return is_new

    def forget(self, key: bytes) -> None:
        """Stop following a chunk."""
        del self._moments[bisect_left(self._moments, self._moment.pop(key))]
