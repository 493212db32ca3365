"""What each use of a prefix needs of a least-recently-used store: the capacity from which on it is a hit.

Mattson's stack distances: a chunk is in a store of C chunks if fewer than C other chunks were used since its last use. A
prefix is found up to its first missing chunk, so a chunk of it is a hit from the capacity on at which all chunks before it
are held as well: the largest distance so far along the prefix.

Long histories are sampled by chunk (SHARDS, Waldspurger et al., FAST 2015): of the chunks whose hashed key is below a
threshold every use is followed, distances and tokens are scaled by the share of them, and the threshold is lowered whenever
too many are held. At capacities of which only a handful of chunks is followed the curve is itself a rough guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from typing import NamedTuple

from kvtrail.tracer.capacity.touches import Touch

SPACE = 1 << 32
"""The numbers that keys are hashed to are below this one."""
WHOLE = -1
"""The group of all chunks, where none is left out."""


class Need(NamedTuple):
    """Tokens that are hits from a capacity on, in chunks; infinite where the chunk was never used before. Of a sample, they
    stand for as many more as the group's chunks do."""

    group: int
    chunks: float
    tokens: float


class Distances:
    """Follows the uses of chunks, in their order."""

    def __init__(self, *, heads_stay: bool = True, most_chunks: int | None = None, groups: int) -> None:
        """
        Args:
            heads_stay: the store counts a prefix's first chunk as used last, so that prefixes are evicted from their ends.
            most_chunks: follow at most so many chunks at a time; None follows all.
            groups: into which the chunks of a sample are sorted.
        """
        self._heads_stay = heads_stay
        self._most_chunks = most_chunks
        self._groups = groups
        self._threshold = SPACE
        self._stack = _Stack()
        self._by_hash: list[tuple[int, bytes]] = []
        """The followed chunks, the largest hash first, where their number is bounded."""

    @property
    def rate(self) -> float:
        """The share of all chunks that is followed."""
        return self._threshold / SPACE

    @property
    def is_sample(self) -> bool:
        """Whether some chunks are not followed."""
        return self._threshold < SPACE

    def enter(self, touch: Touch) -> list[Need]:
        """Use a touch's chunks; returns what it needed. Whether this is of a sample, `is_sample` says afterwards, too."""
        self._make_room()
        wanted, rate, threshold, largest = touch.wanted, self.rate, self._threshold, 0.0
        is_sample = self.is_sample
        followed, needs = [], []
        for n, hashed in _below(threshold, touch.keys):
            key = touch.keys[n]
            if touch.used is None or n < touch.used:
                followed.append((hashed, key))
            distance = self._stack.distance(key)
            largest = max(largest, inf if distance is None else (distance - 1) / rate + 1)
            if n < len(wanted) and wanted[n]:
                needs.append(Need(hashed % self._groups if is_sample else WHOLE, largest, wanted[n] / rate))
        for hashed, key in reversed(followed) if self._heads_stay else followed:
            if self._stack.use(key) and self._most_chunks is not None:
                heappush(self._by_hash, (-hashed, key))
        return needs

    def _make_room(self) -> None:
        """Follow fewer chunks, where there are too many: those below the largest hash."""
        while self._most_chunks is not None and len(self._stack) > self._most_chunks:
            self._threshold = -self._by_hash[0][0]
            while self._by_hash and -self._by_hash[0][0] >= self._threshold:
                self._stack.forget(heappop(self._by_hash)[1])

    def reset(self) -> None:
        """The store has forgotten everything."""
        self._stack.clear()
        self._by_hash.clear()


def _below(threshold: int, keys: Sequence[bytes]) -> list[tuple[int, int]]:
    """The places of the keys that are hashed to a number below this one, and that number. A key is a hash already: its last
    bytes are that number."""
    return [(n, hashed) for n, key in enumerate(map(int.from_bytes, keys)) if (hashed := key % SPACE) < threshold]


class _Stack:
    """Chunks by their last use. How many were used since a chunk's own: a Fenwick tree over the moments of use, which is
    renumbered when it is full."""

    def __init__(self) -> None:
        self._moment: dict[bytes, int] = {}
        self._rebuild()

    def __len__(self) -> int:
        return len(self._moment)

    def distance(self, key: bytes) -> int | None:
        """The capacity at which this chunk is still held; None if it was never used."""
        moment = self._moment.get(key)
        return None if moment is None else len(self._moment) - self._before(moment)

    def use(self, key: bytes) -> bool:
        """Count a chunk as used last; returns whether it is new."""
        if self._now == len(self._tree) - 1:
            self._rebuild()
        before = self._moment.pop(key, None)
        if before is not None:
            self._add(before, -1)
        self._now += 1
        self._moment[key] = self._now
        self._add(self._now, 1)
        return before is None

    def forget(self, key: bytes) -> None:
        """Follow a chunk no longer."""
        self._add(self._moment.pop(key), -1)

    def clear(self) -> None:
        """Forget all chunks."""
        self._moment.clear()
        self._rebuild()

    def _rebuild(self) -> None:
        """Number the moments anew, in their order, with as much room again."""
        self._now = len(self._moment)
        self._moment = {key: n + 1 for n, key in enumerate(sorted(self._moment, key=self._moment.__getitem__))}
        size = max(1024, 2 * self._now) + 1
        counts = list(accumulate([0] + [1] * self._now + [0] * (size - 1 - self._now)))
        self._tree = [counts[n] - counts[n & (n - 1)] if n else 0 for n in range(size)]

    def _before(self, moment: int) -> int:
        """How many chunks were last used before this moment."""
        moment, count = moment - 1, 0
        while moment:
            count += self._tree[moment]
            moment &= moment - 1
        return count

    def _add(self, moment: int, count: int) -> None:
        while moment < len(self._tree):
            self._tree[moment] += count
            moment += moment & -moment
