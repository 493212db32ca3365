"""What memory would have been worth over a range of time, for each connector: read from the sums of `live_needs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kvtrail.tracer.capacity.live_needs import (
    BEGUN,
    CHUNK_TOKENS,
    CHUNKS,
    PREFIX,
    STORED_BYTES,
    STORED_TOKENS,
    capacities,
    curve_of_measures,
)
from kvtrail.tracer.savings.savings import SavingsRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a store of so many chunks would have given: `share` of the wanted tokens, with its standard error."""

    chunks: float
    share: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """What memory buys for one connector.

    Attributes:
        engine, connector: whose it is.
        wanted: tokens of the admitted prompts that vLLM's own cache did not hold, in full chunks.
        chunk_size: tokens of a chunk.
        chunk_bytes: bytes of a chunk on each worker; None where no copy reports bytes.
        since_s: from when on it is followed, Unix seconds, to ten minutes; None if that was before these rows. What was asked
            for earlier, or before a restart of the tracer, counts as never used.
        points: by capacity, up to the one beyond which nothing is gained.
    """

    engine: str
    connector: str
    wanted: int
    chunk_size: int
    chunk_bytes: float | None
    since_s: int | None
    points: list[Given]


def memory_curves(rows: Iterable[SavingsRow]) -> list[MemoryCurve]:
    """The curves of the connectors in these rows, those that wanted most first."""
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
            Given(chunks=chunks, share=hits.value, error=hits.error)
            for chunks, hits in zip(sizes, curve.hits(sizes), strict=True)
        ],
    )
