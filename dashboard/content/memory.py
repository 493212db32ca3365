"""What more or less memory would have been worth: one connector's hit-ratio curve, and sentences about it.

A `curve` is an item of `memory` in `/api/efficiency`; its points are shares of the tokens that vLLM's own cache did not hold.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.model.words import count, percent, size, some

MIB, GIB = 1 << 20, 1 << 30
LARGER = (1.5, 2, 4)
"""The sizes compared with today's store, as multiples of it."""
NEGLIGIBLE, MARGIN = 0.02, 2
"""The share of the curve's maximum below which points are left out; the factor by which the axis begins below the others."""
LEAST_GAIN = 0.002
"""A smaller gain counts as none."""


def limit_of(curve: Row, engines: Iterable[Row]) -> int | None:
    """Bytes that the connector may hold on each worker, by its engine's settings; None if not known."""
    for engine in engines:
        if engine["engine"] == curve["engine"]:
            limits = [each["memory_limit"] for each in engine["recorders"] if each["memory_limit"] is not None]
            return max(limits, default=None)
    return None


def today(curve: Row, limit: int | None) -> float | None:
    """The number of chunks that the store holds today; None if not known."""
    return limit / curve["chunk_bytes"] if limit and curve["chunk_bytes"] else None


def share_at(curve: Row, chunks: float) -> float:
    """The share that a store of `chunks` chunks would have given."""
    return max((point["share"] for point in curve["points"] if point["chunks"] <= chunks), default=0.0)


def unit(curve: Row) -> tuple[str, float]:
    """The unit of the curve's sizes, and the size of a chunk in it."""
    if not curve["chunk_bytes"]:
        return "chunks", 1.0
    largest = curve["points"][-1]["chunks"] * curve["chunk_bytes"]
    name, size_ = ("GiB", GIB) if largest >= GIB else ("MiB", MIB)
    return f"{name} on each worker", curve["chunk_bytes"] / size_


def given(sums: Row) -> float | None:
    """The measured share of full blocks beyond vLLM's own cache that the store gave."""
    causes = sums["causes"]
    unaligned = sum(tokens for name, tokens in causes.items() if name.startswith(("unaligned:", "last-token:")))
    wanted = sums["asked"] - sums["local"] - unaligned
    return min(1.0, sums["taken"] / wanted) if wanted > 0 else None


def rows(curve: Row, *, held: float | None = None) -> list[Row]:
    """The points of the curve, without negligible ones of small stores; `held` is today's size in chunks."""
    _, chunk = unit(curve)
    return [
        {
            "store": point["chunks"] * chunk,
            "share": point["share"],
            "low": max(0.0, point["share"] - 2 * point["error"]),
            "high": min(1.0, point["share"] + 2 * point["error"]),
            "held": stored(curve, point["chunks"]),
            "given": text.percent(point["share"]) + (f" ± {200 * point['error']:.1f}" if point["error"] else ""),
        }
        for point in curve["points"][_first(curve, held) :]
    ]


def _first(curve: Row, held: float | None) -> int:
    """The index of the first point to show."""
    points = curve["points"]
    least = points[-1]["share"] * NEGLIGIBLE
    begin = min(point["chunks"] for point in points if point["share"] >= least) / MARGIN
    begin = min(begin, held / MARGIN) if held else begin
    return sum(1 for point in points if point["chunks"] < begin)


def stored(curve: Row, chunks: float) -> str:
    """A size in chunks as text: in bytes, if known."""
    return size(chunks * curve["chunk_bytes"]) if curve["chunk_bytes"] else some(round(chunks), "chunk")


def sentences(curve: Row, *, limit: int | None, rate: float | None, hours: float, given: float | None = None) -> str:
    """What today's store gives, what larger ones would have given, and the size beyond which nothing is gained.

    Args:
        rate: the engine's prefill rate, in tokens per second; None if not known.
        hours: the time that the curve covers.
        given: the measured share of today's store.
    """
    if not curve["points"]:
        return "No prefix was asked for twice, so no memory would have given anything."
    held, enough = today(curve, limit), curve["points"][-1]
    most = f"Beyond {stored(curve, enough['chunks'])} nothing is gained: what is asked for is new then."
    measured = "" if given is None else f" As measured, it gave {percent(given)}."
    if held is None:
        return (
            f"At most {percent(enough['share'])} of what vLLM's own cache did not hold could have been given. {most} How much"
            f" the store may hold is not known: {_unsized(curve, limit)}.{measured}"
        )
    now = share_at(curve, held)
    if held >= enough["chunks"]:
        return f"Today's {stored(curve, held)} are enough: nothing is evicted that is asked for again.{measured} {most}"
    today_gives = f"Today's {stored(curve, held)} give {percent(now)} of what vLLM's own cache does not hold.{measured}"
    gains = [((times - 1) * held, share_at(curve, times * held) - now) for times in LARGER]
    larger = [
        (stored(curve, more), _worth(gain * curve["wanted"] / hours if hours else 0.0, rate))
        for more, gain in gains
        if gain > LEAST_GAIN
    ]
    if not larger:
        return f"{today_gives} Up to {stored(curve, LARGER[-1] * held)}, nothing more is gained. {most}"
    (more, worth), *rest = larger
    others = "".join(f", {more} more {worth}" for more, worth in rest)
    would = f"saved {worth} of prefill an hour" if rate else f"given {worth} an hour"
    return f"{today_gives} {more} more would have {would}{others}. {most}"


def counted_since(curve: Row) -> str:
    """When the curve begins, if that is within the page's range; else empty."""
    if curve["since_s"] is None:
        return ""
    return f" It counts from {text.clock(curve['since_s'] * 10**9)} on: what was stored before then is taken for new."


def _unsized(curve: Row, limit: int | None) -> str:
    """Why today's size is not known."""
    if limit is None:
        return "its settings name no limit, or its engine is gone"
    return "no worker reports the bytes of its copies"


def _worth(tokens: float, rate: float | None) -> str:
    """Tokens, or the seconds of prefill that they take."""
    return text.seconds(tokens / rate) if rate else f"{count(tokens)} tokens"
