"""What a connector's store would have given with less or more memory: the curve and the bound of a recorded history, in
tokens, seconds of prefill and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from kvtrail.tracer.capacity.bound import intervals, most_hits
from kvtrail.tracer.capacity.curve import curve_of
from kvtrail.tracer.capacity.found_and_stored import given_by
from kvtrail.tracer.capacity.stream import LMCACHE, Stream

STEPS = (0.25, 0.5, 1, 1.5, 2, 3, 4, 8)
"""Capacities that are looked at, as multiples of today's."""
POINTS = 8
"""As many where today's is not known, up to where nothing more is gained."""


class Hits(NamedTuple):
    """Tokens that a store would have given, and their standard error."""

    tokens: int
    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a store of some capacity would have given.

    Attributes:
        chunks: the capacity.
        bytes: the same in bytes on each worker; None where a chunk's size is not known.
        hits: tokens, of those that were wanted, with the store's own order of eviction.
        error: the standard error of `hits`, in tokens; 0 where every chunk was followed.
        least_recent: tokens with prefixes evicted from their ends, least recently used first.
        bound: tokens that no order of eviction could exceed.
        seconds: prefill that `hits` spare, in seconds; None where the engine's rate of prefill is not known.
    """

    chunks: int
    bytes: int | None
    hits: int
    error: int
    least_recent: int
    bound: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What memory buys for one connector.

    Attributes:
        stream: what it was asked for.
        wanted: tokens of the prompts that vLLM's own cache did not hold, in full chunks.
        capacity: chunks that its store holds today; None where that is not known.
        points: by capacity.
        enough: the capacity beyond which nothing is gained.
    """

    stream: Stream
    wanted: int
    capacity: int | None
    points: Sequence[Point]
    enough: int


def estimate(
    stream: Stream,
    *,
    limit: int | None = None,
    sizes: Iterable[int] = (),
    most_chunks: int | None = None,
) -> Estimate:
    """Reckon what memory would have bought.

    Args:
        limit: bytes that the store may hold today, on each worker.
        sizes: of stores to look at besides today's, in chunks; without any, some around it.
        most_chunks: follow a sample of so many chunks; None follows all.
    """
    chunk_bytes = stream.chunk_bytes
    capacity = int(limit / chunk_bytes) if limit and chunk_bytes else None
    own = curve_of(stream.touches, heads_stay=stream.connector not in LMCACHE, most_chunks=most_chunks)
    tails = own if stream.connector not in LMCACHE else curve_of(stream.touches, most_chunks=most_chunks)
    enough = ceil(own.saturates_at())
    around = [step * capacity for step in STEPS] if capacity else [enough * n / POINTS for n in range(1, POINTS + 1)]
    asked = sorted({each for each in (*(sizes or map(ceil, around)), capacity or 0) if each > 0})
    kept = intervals(stream.touches)
    given = [Hits(round(each.value * own.wanted), round(each.error * own.wanted)) for each in own.hits(asked)]
    if stream.connector in LMCACHE and most_chunks is None:  # the one pass above only comes near it
        given = [Hits(given_by(stream.touches, chunks), 0) for chunks in asked]
    points = [
        Point(
            chunks=chunks,
            bytes=None if chunk_bytes is None else round(chunks * chunk_bytes),
            hits=hits.tokens,
            error=hits.error,
            least_recent=round(least.value * own.wanted),
            bound=most_hits(kept, chunks),
            seconds=None if stream.prefill_rate is None else hits.tokens / stream.prefill_rate,
        )
        for chunks, hits, least in zip(asked, given, tails.hits(asked), strict=True)
    ]
    return Estimate(stream=stream, wanted=own.wanted, capacity=capacity, points=points, enough=enough)


def as_dict(estimate: Estimate, engine_names: Mapping[str, str]) -> dict[str, object]:
    """The estimate as JSON has it."""
    stream = estimate.stream
    return {
        "engine": stream.engine,
        "engine_name": engine_names.get(stream.engine, stream.engine),
        "connector": stream.connector,
        "chunk_size": stream.chunk_size,
        "chunk_bytes": stream.chunk_bytes,
        "capacity": estimate.capacity,
        "enough": estimate.enough,
        "hours": stream.hours,
        "prefill_tokens_per_s": stream.prefill_rate,
        "admissions": stream.admissions,
        "unhashed": stream.unhashed,
        "tokens": {
            "asked": stream.asked,
            "local": stream.local,
            "taken": stream.taken,
            "wanted": estimate.wanted,
        },
        "points": [
            {
                "chunks": point.chunks,
                "bytes": point.bytes,
                "hits": point.hits,
                "error": point.error,
                "least_recent": point.least_recent,
                "bound": point.bound,
                "seconds": point.seconds,
            }
            for point in estimate.points
        ],
    }
