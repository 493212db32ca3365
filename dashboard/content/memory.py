"""The estimated effect of more or less memory: one connector's hit-ratio curve, and sentences about it.

A `curve` is an item of `memory` in `/api/efficiency`; its points are shares of the tokens that vLLM's own cache did not hold.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.model import store_size
from kvtrail.tracer.model.words import percent, size, some

MIB, GIB = 1 << 20, 1 << 30


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


def unit(curve: Row) -> tuple[str, float]:
    """The unit of the curve's sizes, and the size of a chunk in it."""
    if not curve["chunk_bytes"]:
        return "chunks", 1.0
    largest = curve["points"][-1]["chunks"] * curve["chunk_bytes"]
    name, size_ = ("GiB", GIB) if largest >= GIB else ("MiB", MIB)
    return f"{name} on each worker", curve["chunk_bytes"] / size_


def given_of(curve: Row, savings: Row) -> float | None:
    """The measured share that the store of a curve gave."""
    owner = (curve["engine"], curve["connector"])
    return next(
        (store_size.given(p["worth"]) for p in savings["by_place"] if (p["engine"], p["connector"]) == owner), None
    )


def most_to_gain(savings: Row) -> Row | None:
    """The curve of the connector that another size of its store would change most; None if there is no curve."""

    def gain(curve: Row) -> float:
        """Additional tokens that a store of the best size would have supplied."""
        best = curve["points"][-1]["share"] if curve["points"] else 0.0
        return float(max(0.0, best - (given_of(curve, savings) or 0.0)) * curve["wanted"])

    return max(savings["memory"], key=gain, default=None)


def place(curve: Row, savings: Row) -> str:
    """The connector and the engine of a curve as text; empty if there is only one curve."""
    if len(savings["memory"]) < 2:
        return ""
    engine = savings["engine_names"].get(curve["engine"], curve["engine"])
    return f"{text.plain(curve['connector'])} in {text.plain(engine)}"


def better(curve: Row, *, limit: int | None, given: float | None, place: str = "") -> str:
    """The size that would have supplied much more than the current store, in a sentence; empty if there is none, or if the
    current store's share is unknown. `place` names the store if there are several."""
    held, point = today(curve, limit), store_size.better(curve["points"], given)
    if point is None or (held is not None and held >= point["chunks"]):
        return ""
    a = f"For {place}, a" if place else "A"
    return (
        f"{a} store of {stored(curve, point['chunks'])} would have given {percent(point['share'])} of what vLLM's own"
        f" cache did not hold, by the estimate below; this one gave {percent(given or 0.0)}."
    )


def better_of(savings: Row, engines: Iterable[Row]) -> str:
    """The same sentence about the store that another size would change most; empty if there is none."""
    if (curve := most_to_gain(savings)) is None:
        return ""
    return better(curve, limit=limit_of(curve, engines), given=given_of(curve, savings), place=place(curve, savings))


def rows(curve: Row) -> list[Row]:
    """The points of the curve."""
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
        for point in curve["points"]
    ]


def stored(curve: Row, chunks: float) -> str:
    """A size in chunks as text: in bytes, if known."""
    return size(chunks * curve["chunk_bytes"]) if curve["chunk_bytes"] else some(round(chunks), "chunk")


def sentences(curve: Row, *, limit: int | None, given: float | None = None) -> str:
    """The estimated share of the current store, its measured share (`given`) if known, and the size beyond which nothing is
    gained."""
    if not curve["points"]:
        return "No prefix was asked for twice, so no memory would have given anything."
    held, enough = today(curve, limit), curve["points"][-1]
    most = f"Beyond {stored(curve, enough['chunks'])} nothing is gained: what is asked for is new then."
    measured = "" if given is None else f" As measured, it gave {percent(given)}."
    if held is None:
        return (
            f"At most {percent(enough['share'])} of what vLLM's own cache did not hold could have been given. {most} How much"
            f" the store may hold is not known.{measured}"
        )
    share = max((point["share"] for point in curve["points"] if point["chunks"] <= held), default=0.0)
    if held >= enough["chunks"]:
        return (
            f"Today's {stored(curve, held)} have room for all that is asked for again, {percent(share)} of what vLLM's own"
            f" cache does not hold.{measured} {most}"
        )
    return (
        f"Today's {stored(curve, held)} give {percent(share)} of what vLLM's own cache does not hold.{measured} {most}"
    )


def counted_since(curve: Row) -> str:
    """The start of the curve's data, if it is within the page's range; else empty."""
    if curve["since_s"] is None:
        return ""
    since = text.clock(curve["since_s"] * 10**9)[: -len(":00.000")]
    return f" It counts from about {since} on: what was stored before then is taken for new."
