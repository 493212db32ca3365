"""The miss-ratio curve of a least-recently-used store: its hits at every capacity, from reuse distances.

The accesses of a sample stand for the others. Chunks are sorted into groups by their keys; the spread of the groups gives the
standard error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf, sqrt
from statistics import stdev
from typing import NamedTuple

from kvtrail.tracer.capacity.reuse_distance import GROUPS, WHOLE, ReuseDistance


class Share(NamedTuple):
    """A share of the wanted tokens, and its standard error; that is 0 where nothing was sampled."""

    value: float
    error: float


class Curve:
    """Sums up reuse distances.

    Attributes:
        wanted: the tokens that all accesses together wanted from the store.
        sampled: those of them that were wanted while only a sample was followed.
    """

    def __init__(self) -> None:
        self.wanted = self.sampled = 0
        self._tokens: defaultdict[int, dict[float, float]] = defaultdict(dict)
        """By group: the smallest capacity at which tokens are hits, and how many tokens."""

    def enter(self, wanted: int, distances: Iterable[ReuseDistance], *, is_sample: bool) -> None:
        """Count an access: the tokens that it wanted, and the reuse distances of its followed chunks."""
        self.wanted += wanted
        if is_sample:
            self.sampled += wanted
        for group, chunks, tokens in distances:
            held = self._tokens[group]
            held[chunks] = held.get(chunks, 0.0) + tokens

    def hits(self, capacities: Sequence[float]) -> list[Share]:
        """The hit rate, as a share of the wanted tokens, of a store of each of these capacities (in chunks)."""
        if not self.wanted:
            return [Share(0.0, 0.0) for _ in capacities]
        whole = _up_to(self._tokens.get(WHOLE, {}), capacities)
        groups = [self._tokens.get(group, {}) for group in range(GROUPS)]
        followed = [sum(group.values()) for group in groups]
        by_group = [_up_to(group, capacities) for group in groups]
        shares = []
        for n in range(len(capacities)):
            hits, error = self._estimate([all_ - each[n] for all_, each in zip(followed, by_group, strict=True)])
            shares.append(Share((whole[n] + hits) / self.wanted, error / self.wanted))
        return shares

    def _estimate(self, misses: Sequence[float]) -> tuple[float, float]:
        """The hits of all accesses that the groups stand for, and the standard error.

        A sample's hits depend on whether the few most wanted chunks are in it. Its misses vary less, since no chunk has many
        of them, and the total is known: hits are the total less the misses (SHARDS-adj). The spread of the groups' misses
        gives the error."""
        if not self.sampled:
            return 0.0, 0.0
        hits = self.sampled - sum(misses)
        return min(max(hits, 0.0), self.sampled), sqrt(len(misses)) * stdev(misses)

    def saturates_at(self) -> float:
        """The capacity, in chunks, beyond which hits no longer grow; 0 if nothing was accessed twice."""
        return max((chunks for group in self._tokens.values() for chunks in group if chunks != inf), default=0.0)


def _up_to(group: Mapping[float, float], capacities: Sequence[float]) -> list[float]:
    """The tokens that are hits at each capacity."""
    ordered = sorted(range(len(capacities)), key=capacities.__getitem__)
    hits, held, left = [0.0] * len(capacities), 0.0, sorted(group.items(), reverse=True)
    for n in ordered:
        while left and left[-1][0] <= capacities[n]:
            held += left.pop()[1]
        hits[n] = held
    return hits
