"""The miss-ratio curve of each connector over a range of time, from the sums that `online_curve` writes.

The accesses of a sample stand for the others. Chunks are sorted into groups by their keys; the spread of the groups gives the
standard error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf, log2, sqrt
from statistics import stdev

from kvtrail.tracer.capacity.online_curve import (
    BEGUN,
    CHUNK_TOKENS,
    CHUNKS,
    PREFIX,
    SAMPLED,
    STEPS,
    STORED_BYTES,
    STORED_TOKENS,
    WANTED,
)
from kvtrail.tracer.capacity.reuse_distance import GROUPS, WHOLE
from kvtrail.tracer.savings.minute_sums import SavingsRow


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The hit rate of a store of `chunks` chunks: `share` of the wanted tokens, with its standard error. The error is 0 if
    nothing was sampled."""

    chunks: float
    share: float
    error: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Summed reuse distances.

    Attributes:
        wanted: the tokens that all accesses together wanted from the store.
        sampled: the part of them that was wanted while only a sample was followed.
        tokens: by group: the number of tokens by the smallest capacity, in chunks, at which they are hits.
    """

    wanted: int
    sampled: int
    tokens: Mapping[int, Mapping[float, float]]

    def hits(self, capacities: Sequence[float]) -> list[CurvePoint]:
        """The hit rates of stores of these capacities, in chunks."""
        if not self.wanted:
            return [CurvePoint(chunks, 0.0, 0.0) for chunks in capacities]
        whole = _up_to(self.tokens.get(WHOLE, {}), capacities)
        groups = [self.tokens.get(group, {}) for group in range(GROUPS)]
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
        return max((chunks for group in self.tokens.values() for chunks in group if chunks != inf), default=0.0)


def _up_to(group: Mapping[float, float], capacities: Sequence[float]) -> list[float]:
    """The tokens that are hits at each capacity."""
    ordered = sorted(group.items())
    sums = [0.0, *accumulate(tokens for _, tokens in ordered)]
    return [sums[bisect_right(ordered, (chunks, inf))] for chunks in capacities]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """The hit rates of one connector at other capacities.

    Attributes:
        engine, connector: the engine, and its connector.
        wanted: tokens of the admitted prompts that vLLM's own cache did not hold, in full chunks.
        chunk_size: tokens of a chunk.
        chunk_bytes: bytes of a chunk on each worker; None if no copy reports bytes.
        since_s: when counting started, in Unix seconds, rounded to ten minutes; None if before these rows. Chunks used
            earlier, or before a restart of the tracer, count as never used.
        points: by capacity, up to the one beyond which hits no longer grow.
    """

    engine: str
    connector: str
    wanted: int
    chunk_size: int
    chunk_bytes: float | None
    since_s: int | None
    points: list[CurvePoint]

    def given(self, chunks: float) -> CurvePoint:
        """The hit rate of a store of this capacity: the largest point up to it."""
        smaller = [point for point in self.points if point.chunks <= chunks]
        return smaller[-1] if smaller else CurvePoint(0, 0.0, 0.0)


def memory_curves(rows: Iterable[SavingsRow]) -> list[MemoryCurve]:
    """The curves of the connectors in these rows, most wanted tokens first."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    since_s: dict[tuple[str, str], int] = {}
    for row in rows:
        own = {name: value for name, value in row.measures.items() if name.startswith(PREFIX)}
        if own:
            owner = row.engine, row.connector
            sums.setdefault(owner, Counter()).update(own)
            if BEGUN in own:
                since_s[owner] = max(row.at_s, since_s.get(owner, 0))
    curves = [_curve(*owner, measures, since_s.get(owner)) for owner, measures in sums.items() if measures[CHUNKS]]
    return sorted(curves, key=lambda curve: (-curve.wanted, curve.engine, curve.connector))


def _curve(engine: str, connector: str, measures: Counter[str], since_s: int | None) -> MemoryCurve:
    curve = curve_of_measures(measures)
    enough = curve.saturates_at()
    sizes = [2 ** (step / STEPS) for step in range(ceil(STEPS * log2(enough)) + 1)] if enough else []
    chunk_size = measures[CHUNK_TOKENS] // measures[CHUNKS]
    stored = measures[STORED_TOKENS]
    return MemoryCurve(
        engine=engine,
        connector=connector,
        wanted=curve.wanted,
        chunk_size=chunk_size,
        chunk_bytes=measures[STORED_BYTES] / stored * chunk_size if stored else None,
        since_s=since_s,
        points=curve.hits(sizes),
    )


def curve_of_measures(measures: Mapping[str, int]) -> Curve:
    """The curve from sums of measures; unrelated measures are ignored."""
    tokens: defaultdict[int, dict[float, float]] = defaultdict(dict)
    for name, number in measures.items():
        if name.startswith(PREFIX) and name.count(":") == 2:
            _, group, step = name.split(":")
            chunks = 2 ** (int(step) / STEPS) if step else inf
            tokens[int(group) if group else WHOLE][chunks] = number
    return Curve(measures.get(WANTED, 0), measures.get(SAMPLED, 0), tokens)
