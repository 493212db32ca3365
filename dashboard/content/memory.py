"""The estimated effect of more or less memory: one connector's hit-ratio curve, and sentences about it.

A `curve` is an item of `memory` in `/api/efficiency`; its points are shares of the tokens that vLLM's own cache did not hold.
`of_store` adds to it what is known of the store that it describes.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.model import store_size
from kvtrail.tracer.model.words import percent, size, some

MIB, GIB = 1 << 20, 1 << 30


def of_store(curve: Row, savings: Row, engines: Iterable[Row]) -> Row:
    """The curve with facts about its connector's store: `held`, the number of chunks that it may hold by its engine's
    settings; `given`, the measured share that it gave; and `place`, the connector and its engine as text, empty if there is
    only one curve. None stands for an unknown number."""
    owner = (curve["engine"], curve["connector"])
    of_engine = [recorder for each in engines if each["engine"] == curve["engine"] for recorder in each["recorders"]]
    limit = max((each["memory_limit"] for each in of_engine if each["memory_limit"] is not None), default=None)
    sums = (each["worth"] for each in savings["by_place"] if (each["engine"], each["connector"]) == owner)
    engine = savings["engine_names"].get(curve["engine"], curve["engine"])
    return {
        **curve,
        "held": limit / curve["chunk_bytes"] if limit and curve["chunk_bytes"] else None,
        "given": next(map(store_size.given, sums), None),
        "place": f"{text.plain(curve['connector'])} in {text.plain(engine)}" if len(savings["memory"]) > 1 else "",
    }


def unit(curve: Row) -> tuple[str, float]:
    """The unit of the curve's sizes, and the size of a chunk in it."""
    if not curve["chunk_bytes"]:
        return "chunks", 1.0
    largest = curve["points"][-1]["chunks"] * curve["chunk_bytes"]
    name, size_ = ("GiB", GIB) if largest >= GIB else ("MiB", MIB)
    return f"{name} on each worker", curve["chunk_bytes"] / size_


def most_to_gain(savings: Row, engines: Iterable[Row]) -> Row | None:
    """The curve of the connector that another size of its store would change most; None if there is no curve."""

    def gain(curve: Row) -> float:
        """Additional tokens that a store of the best size would have supplied."""
        best = curve["points"][-1]["share"] if curve["points"] else 0.0
        return float(max(0.0, best - (curve["given"] or 0.0)) * curve["wanted"])

    return max((of_store(curve, savings, engines) for curve in savings["memory"]), key=gain, default=None)


def better(curve: Row) -> str:
    """The size that would have supplied much more than the current store, in a sentence; empty if there is none, or if the
    current store's share is unknown."""
    held, point = curve["held"], store_size.better(curve["points"], curve["given"])
    if point is None or (held is not None and held >= point["chunks"]):
        return ""
    a = f"For {curve['place']}, a" if curve["place"] else "A"
    return (
        f"{a} store of {stored(curve, point['chunks'])} would have given {percent(point['share'])} of what vLLM's own"
        f" cache did not hold, by the estimate below; this one gave {percent(curve['given'])}."
    )


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


def sentences(curve: Row) -> str:
    """The estimated share of the current store, its measured share if known, and the size beyond which nothing is gained."""
    if not curve["points"]:
        return "No prefix was asked for twice, so no memory would have given anything."
    held, given, enough = curve["held"], curve["given"], curve["points"][-1]
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
