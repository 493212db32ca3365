"""The miss-ratio curve of each connector over a range of time, from the sums that `online_curve` writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kvtrail.tracer.capacity.online_curve import (
    BEGUN,
    CHUNK_TOKENS,
    CHUNKS,
    PREFIX,
    STORED_BYTES,
    STORED_TOKENS,
    capacities,
    curve_of_measures,
)
from kvtrail.tracer.savings.sums import SavingsRow


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The hit rate of a store of `chunks` chunks: `share` of the wanted tokens, with its standard error."""

    chunks: float
    share: float
    error: float


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
        return smaller[-1] if smaller else CurvePoint(chunks=0, share=0.0, error=0.0)


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
    sizes = capacities(curve)
    chunk_size = measures[CHUNK_TOKENS] // measures[CHUNKS]
    stored = measures[STORED_TOKENS]
    return MemoryCurve(
        engine=engine,
        connector=connector,
        wanted=curve.wanted,
        chunk_size=chunk_size,
        chunk_bytes=measures[STORED_BYTES] / stored * chunk_size if stored else None,
        since_s=since_s,
        points=[
            CurvePoint(chunks=chunks, share=hits.value, error=hits.error)
            for chunks, hits in zip(sizes, curve.hits(sizes), strict=True)
        ],
    )
