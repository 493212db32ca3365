"""The miss-ratio curve of a least-recently-used store: its hits at every capacity, from reuse distances.

The accesses of a sample stand for the others. Chunks are sorted into groups by their keys; the spread of the groups gives the
standard error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, sqrt
from statistics import stdev

from kvtrail.tracer.capacity.reuse_distance import GROUPS, WHOLE, ReuseDistance


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The hit rate of a store of `chunks` chunks: `share` of the wanted tokens, with its standard error, which is 0 where
    nothing was sampled."""

    chunks: float
    share: float
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

    def hits(self, capacities: Sequence[float]) -> list[CurvePoint]:
        """The hit rates of stores of these capacities, in chunks."""
        if not self.wanted:
            return [CurvePoint(chunks, 0.0, 0.0) for chunks in capacities]
        whole = _up_to(self._tokens.get(WHOLE, {}), capacities)
        groups = [self._tokens.get(group, {}) for group in range(GROUPS)]
        by_group = [_up_to(group, [*capacities, inf]) for group in groups]
        points = []
        for n, chunks in enumerate(capacities):
            hits, error = self._estimate([held[-1] - held[n] for held in by_group])
            points.append(CurvePoint(chunks, (whole[n] + hits) / self.wanted, error / self.wanted))
        return points

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
    ordered = sorted(group.items())
    sums = [0.0, *accumulate(tokens for _, tokens in ordered)]
    return [sums[bisect_right(ordered, (chunks, inf))] for chunks in capacities]
