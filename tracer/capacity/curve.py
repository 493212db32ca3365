"""The hits of a least-recently-used store at every capacity, in one pass over its touches.

Mattson's stack distances: a chunk is in a store of C chunks if fewer than C other chunks were used since its last use. A
prefix is found up to its first missing chunk, so a chunk of it is a hit from the capacity on at which all chunks before it
are held as well: the largest distance so far along the prefix.

Long histories are sampled by chunk (SHARDS, Waldspurger et al., FAST 2015): of the chunks whose hashed key is below a
threshold every use is followed, distances are scaled by the share of them, and the threshold is lowered whenever too many
are held. The followed chunks are in groups, by their keys; how much the groups differ is the error. At
capacities of which only a handful of chunks is followed it is itself a rough guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import accumulate
from math import sqrt
from statistics import fmean
from typing import NamedTuple

from kvtrail.tracer.capacity.touches import Touch

SPACE = 1 << 32
"""Keys are hashed to numbers below this one."""
GROUPS = 32


class Share(NamedTuple):
    """A share of the wanted tokens, and its standard error; that is 0 where nothing was sampled."""

    value: float
    error: float


class Curve:
    """Counts the hits of touches, in their order.

    Attributes:
        wanted: the tokens that all touches together wanted from the store.
    """

    def __init__(self, *, heads_stay: bool = True, most_chunks: int | None = None) -> None:
        """
        Args:
            heads_stay: the store counts a prefix's first chunk as used last, so that prefixes are evicted from their ends.
            most_chunks: follow at most so many chunks at a time; None follows all.
        """
        self.wanted = 0
        self._heads_stay = heads_stay
        self._most_chunks = most_chunks
        self._threshold = SPACE
        self._stack = _Stack()
        self._by_hash: list[tuple[int, str]] = []
        """The followed chunks, the largest hash first, where their number is bounded."""
        self._needs: list[dict[float, float]] = [{} for _ in range(GROUPS)]
        """By group: the tokens that are hits from a capacity on."""
        self._followed = [0.0] * GROUPS
        """By group: the tokens that its chunks wanted."""

    @property
    def rate(self) -> float:
        """The share of all chunks that is followed."""
        return self._threshold / SPACE

    def enter(self, touch: Touch) -> None:
        """Count a touch, and use its chunks."""
        keys, wanted = touch.keys, touch.wanted
        self.wanted += sum(wanted)
        rate, threshold, need = self.rate, self._threshold, 0.0
        followed = []
        for n, key in enumerate(keys):
            hashed = _hashed(key)
            if hashed >= threshold:
                continue
            followed.append((hashed, key))
            group = hashed % GROUPS
            distance = self._stack.distance(key)
            need = max(need, float("inf") if distance is None else (distance - 1) / rate + 1)
            if n < len(wanted) and wanted[n]:
                self._followed[group] += wanted[n]
                self._needs[group][need] = self._needs[group].get(need, 0.0) + wanted[n]
        for _, key in reversed(followed) if self._heads_stay else followed:
            if self._stack.use(key) and self._most_chunks is not None:
                heappush(self._by_hash, (-_hashed(key), key))
        while self._most_chunks is not None and len(self._stack) > self._most_chunks:
            self._follow_fewer()

    def _follow_fewer(self) -> None:
        """Lower the threshold below the largest hash. What was counted with more chunks counts less from now on."""
        before, self._threshold = self._threshold, -self._by_hash[0][0]
        while self._by_hash and -self._by_hash[0][0] >= self._threshold:
            self._stack.forget(heappop(self._by_hash)[1])
        share = self._threshold / before
        self._followed = [tokens * share for tokens in self._followed]
        self._needs = [{need: tokens * share for need, tokens in needs.items()} for needs in self._needs]

    def reset(self) -> None:
        """The store has forgotten everything."""
        self._stack.clear()
        self._by_hash.clear()

    def hits(self, capacities: Sequence[float]) -> list[Share]:
        """The share of the wanted tokens that a store of so many chunks would have given, for each capacity."""
        by_group = [_up_to(needs, capacities) for needs in self._needs]
        return [self._share([hits[n] for hits in by_group]) for n in range(len(capacities))]

    def _share(self, hits: Sequence[float]) -> Share:
        """The share of all that the groups' hits stand for.

        A sample that holds more of the chunks that are wanted often has more hits as well: the groups show how much more, and
        that is taken off (a regression estimate: Cochran, Sampling Techniques, chapter 7)."""
        followed, expected = self._followed, self.wanted * self.rate / GROUPS
        if not expected:
            return Share(0.0, 0.0)
        if self.rate == 1:
            return Share(sum(hits) / self.wanted, 0.0)
        mean, mean_followed = fmean(hits), fmean(followed)
        spread = sum((each - mean_followed) ** 2 for each in followed)
        slope = (
            sum((h - mean) * (f - mean_followed) for h, f in zip(hits, followed, strict=True)) / spread
            if spread
            else 0.0
        )
        slope = min(max(slope, 0.0), 1.0)
        value = mean + slope * (expected - mean_followed)
        apart = [h - mean - slope * (f - mean_followed) for h, f in zip(hits, followed, strict=True)]
        error = sqrt(sum(each**2 for each in apart) / (GROUPS - 2) / GROUPS)
        return Share(min(max(value / expected, 0.0), 1.0), error / expected)

    def saturates_at(self) -> float:
        """The capacity, in chunks, beyond which nothing more would be a hit; 0 if nothing was touched again."""
        needs = [need for counter in self._needs for need in counter if need != float("inf")]
        return max(needs, default=0.0)


def _up_to(needs: Mapping[float, float], capacities: Sequence[float]) -> list[float]:
    """The tokens that are hits at each capacity."""
    ordered = sorted(range(len(capacities)), key=capacities.__getitem__)
    hits, held, left = [0.0] * len(capacities), 0.0, sorted(needs.items(), reverse=True)
    for n in ordered:
        while left and left[-1][0] <= capacities[n]:
            held += left.pop()[1]
        hits[n] = held
    return hits


def _hashed(key: str) -> int:
    """A number below `SPACE` that says nothing of the key."""
    return int.from_bytes(blake2b(key.encode(), digest_size=4).digest())


class _Stack:
    """Chunks by their last use. How many were used since a chunk's own: a Fenwick tree over the moments of use, which is
    renumbered when it is full."""

    def __init__(self) -> None:
        self._moment: dict[str, int] = {}
        self._rebuild()

    def __len__(self) -> int:
        return len(self._moment)

    def distance(self, key: str) -> int | None:
        """The capacity at which this chunk is still held; None if it was never used."""
        moment = self._moment.get(key)
        return None if moment is None else len(self._moment) - self._before(moment)

    def use(self, key: str) -> bool:
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

    def forget(self, key: str) -> None:
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


def curve_of(touches: Iterable[Touch | None], *, heads_stay: bool = True, most_chunks: int | None = None) -> Curve:
    """The curve of a whole history; None means that the store was emptied."""
    curve = Curve(heads_stay=heads_stay, most_chunks=most_chunks)
    for touch in touches:
        if touch is None:
            curve.reset()
        else:
            curve.enter(touch)
    return curve
