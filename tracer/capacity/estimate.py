"""The hit rate of a connector's store at other sizes: the curve and the offline optimum of a recorded history, in tokens,
seconds of prefill and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from kvtrail.tracer.capacity.accesses import LMCACHE
from kvtrail.tracer.capacity.belady import reuse_intervals, upper_bound
from kvtrail.tracer.capacity.curve import curve_of
from kvtrail.tracer.capacity.lmcache_order import lmcache_hits
from kvtrail.tracer.capacity.stream import Stream

STEPS = (0.25, 0.5, 1, 1.5, 2, 3, 4, 8)
"""Capacities to estimate, as multiples of today's."""
POINTS = 8
"""Capacities to estimate where today's is not known, up to the one beyond which hits no longer grow."""


class Hits(NamedTuple):
    """Hit tokens of a store, and their standard error."""

    tokens: int
    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The estimated hits of a store of one capacity.

    Attributes:
        chunks: the capacity.
        bytes: the same in bytes on each worker; None where a chunk's size is not known.
        hits: hit tokens with the store's own eviction order.
        error: the standard error of `hits`, in tokens; 0 where every chunk was followed.
        least_recent: hit tokens with least-recently-used eviction that evicts prefixes from their ends.
        bound: hit tokens that no eviction policy could exceed.
        seconds: prefill that `hits` save, in seconds; None where the engine's rate of prefill is not known.
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
    """The estimates for one connector.

    Attributes:
        stream: its accesses.
        wanted: tokens of the prompts that vLLM's own cache did not hold, in full chunks.
        capacity: chunks that its store holds today; None where that is not known.
        points: by capacity.
        enough: the capacity beyond which hits no longer grow.
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
    """Estimate the hit rate at other cache sizes.

    Args:
        limit: bytes that the store may hold today, on each worker.
        sizes: capacities to estimate besides today's, in chunks; without any, some around it.
        most_chunks: follow a sample of this many chunks; None follows all.
    """
    chunk_bytes = stream.chunk_bytes
    capacity = int(limit / chunk_bytes) if limit and chunk_bytes else None
    own = curve_of(stream.accesses, evicts_tails_first=stream.connector not in LMCACHE, most_chunks=most_chunks)
    tails = own if stream.connector not in LMCACHE else curve_of(stream.accesses, most_chunks=most_chunks)
    enough = ceil(own.saturates_at())
    around = [step * capacity for step in STEPS] if capacity else [enough * n / POINTS for n in range(1, POINTS + 1)]
    asked = sorted({each for each in (*(sizes or map(ceil, around)), capacity or 0) if each > 0})
    intervals = reuse_intervals(stream.accesses)
    hits = [Hits(round(each.value * own.wanted), round(each.error * own.wanted)) for each in own.hits(asked)]
    if stream.connector in LMCACHE and most_chunks is None:  # a single pass only approximates its order
        hits = [Hits(lmcache_hits(stream.accesses, chunks), 0) for chunks in asked]
    points = [
        Point(
            chunks=chunks,
            bytes=None if chunk_bytes is None else round(chunks * chunk_bytes),
            hits=own_hits.tokens,
            error=own_hits.error,
            least_recent=round(least.value * own.wanted),
            bound=upper_bound(intervals, chunks),
            seconds=None if stream.prefill_rate is None else own_hits.tokens / stream.prefill_rate,
        )
        for chunks, own_hits, least in zip(asked, hits, tails.hits(asked), strict=True)
    ]
    return Estimate(stream=stream, wanted=own.wanted, capacity=capacity, points=points, enough=enough)


def as_dict(estimate: Estimate, engine_names: Mapping[str, str]) -> dict[str, object]:
    """The estimate as JSON."""
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
