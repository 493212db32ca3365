"""The miss-ratio curve of each connector over a range of time, from the sums that `online_curve` writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf, log2

from kvtrail.tracer.capacity.curve import Curve, CurvePoint
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
from kvtrail.tracer.capacity.reuse_distance import WHOLE, ReuseDistance
from kvtrail.tracer.savings.minute_sums import SavingsRow


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """The hit rates of one connector at other capacities.

    Attributes:
        engine, connector: that were asked.
        wanted: tokens of the admitted prompts that vLLM's own cache did not hold, in full chunks.
        chunk_size: tokens of a chunk.
        chunk_bytes: bytes of a chunk on each worker; None where no copy reports bytes.
        since_s: when counting started, in Unix seconds, to ten minutes; None if before these rows. Chunks used earlier, or
            before a restart of the tracer, count as never used.
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
        """What a store of this capacity gives: the largest point up to it."""
        smaller = [point for point in self.points if point.chunks <= chunks]
        return smaller[-1] if smaller else CurvePoint(0, 0.0, 0.0)


def memory_curves(rows: Iterable[SavingsRow]) -> list[MemoryCurve]:
    """The curves of the connectors in these rows, those that wanted most tokens first."""
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
    """The curve from sums of measures; measures of other things are ignored."""
    curve = Curve()
    sampled = measures.get(SAMPLED, 0)
    distances = [
        _distance(name, tokens) for name, tokens in measures.items() if name.startswith(PREFIX) and name.count(":") == 2
    ]
    curve.enter(measures.get(WANTED, 0) - sampled, [each for each in distances if each.group == WHOLE], is_sample=False)
    curve.enter(sampled, [each for each in distances if each.group != WHOLE], is_sample=True)
    return curve


def _distance(measure: str, tokens: int) -> ReuseDistance:
    _, group, step = measure.split(":")
    return ReuseDistance(int(group) if group else WHOLE, 2 ** (int(step) / STEPS) if step else inf, tokens)
