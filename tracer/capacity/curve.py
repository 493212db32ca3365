"""The hits of a least-recently-used store at every capacity, from what its touches need (`distances`).

A sample's uses stand for others of their kind. They are in groups, by their keys: how much the groups differ is the error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf, sqrt
from statistics import stdev
from typing import NamedTuple

from kvtrail.tracer.capacity.distances import WHOLE, Distances, Need
from kvtrail.tracer.capacity.touches import Touch

GROUPS = 32
"""Of the chunks of a sample."""


class Share(NamedTuple):
    """A share of the wanted tokens, and its standard error; that is 0 where nothing was sampled."""

    value: float
    error: float


class Curve:
    """Sums up what touches need.

    Attributes:
        wanted: the tokens that all touches together wanted from the store.
        sampled: those of them that were wanted while only a sample was followed.
    """

    def __init__(self, *, groups: int = GROUPS) -> None:
        self.wanted = self.sampled = 0
        self._groups = groups
        self._tokens: defaultdict[int, dict[float, float]] = defaultdict(dict)
        """By group: the tokens that are hits from a capacity on."""

    def enter(self, wanted: int, needs: Iterable[Need], *, is_sample: bool) -> None:
        """Count a touch: the tokens that it wanted, and what they need, as far as they are followed."""
        self.wanted += wanted
        if is_sample:
            self.sampled += wanted
        for group, chunks, tokens in needs:
            held = self._tokens[group]
            held[chunks] = held.get(chunks, 0.0) + tokens

    def hits(self, capacities: Sequence[float]) -> list[Share]:
        """The share of the wanted tokens that a store of so many chunks would have given, for each capacity."""
        if not self.wanted:
            return [Share(0.0, 0.0) for _ in capacities]
        whole = _up_to(self._tokens.get(WHOLE, {}), capacities)
        groups = [self._tokens.get(group, {}) for group in range(self._groups)]
        followed = [sum(needs.values()) for needs in groups]
        by_group = [_up_to(needs, capacities) for needs in groups]
        shares = []
        for n in range(len(capacities)):
            hits, error = self._estimate([all_ - each[n] for all_, each in zip(followed, by_group, strict=True)])
            shares.append(Share((whole[n] + hits) / self.wanted, error / self.wanted))
        return shares

    def _estimate(self, misses: Sequence[float]) -> tuple[float, float]:
        """The hits of all that the groups stand for, and the standard error.

        What a sample says of its hits hangs on whether the few chunks that are wanted most are in it. It says more of its
        misses, as no chunk has many of them, and how much was wanted is known: the rest are hits (SHARDS-adj). Groups that
        miss more or less than others show the error."""
        if not self.sampled:
            return 0.0, 0.0
        hits = self.sampled - sum(misses)
        return min(max(hits, 0.0), self.sampled), sqrt(len(misses)) * stdev(misses)

    def saturates_at(self) -> float:
        """The capacity, in chunks, beyond which nothing more would be a hit; 0 if nothing was touched again."""
        needs = [chunks for counter in self._tokens.values() for chunks in counter if chunks != inf]
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


def curve_of(touches: Iterable[Touch | None], *, heads_stay: bool = True, most_chunks: int | None = None) -> Curve:
    """The curve of a whole history; None means that the store was emptied."""
    distances, curve = Distances(heads_stay=heads_stay, most_chunks=most_chunks, groups=GROUPS), Curve()
    for touch in touches:
        if touch is None:
            distances.reset()
        else:
            curve.enter(sum(touch.wanted), distances.enter(touch), is_sample=distances.is_sample)
    return curve
