"""Estimated hit rates at other cache sizes, as text: a table of capacities for each connector, and a summary in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from click import style

from kvtrail.tracer.capacity.estimate import Estimate, Point
from kvtrail.tracer.capacity.stream import Stream
from kvtrail.tracer.model import words
from kvtrail.tracer.reports.terminal import plain, wrapped

SECOND_NS = 10**9
MAX_GAINS = 3
"""Larger stores that a sentence compares with today's; the table has all of them."""


def as_text(estimates: Sequence[Estimate], engine_names: Mapping[str, str], *, columns: int | None = None) -> str:
    """All estimates, one below the other."""
    return "\n\n".join(_one(each, engine_names, columns) for each in estimates)


def _one(estimate: Estimate, engine_names: Mapping[str, str], columns: int | None) -> str:
    stream = estimate.stream
    name = engine_names.get(stream.engine, stream.engine)
    lines = [style(plain(f"{stream.connector} in {name}"), bold=True)]
    for sentence in (_measured(stream), _capacity(estimate), _unhashed(stream)):
        lines += wrapped(sentence, columns, first="  ") if sentence else []
    if stream.unhashed == stream.admissions:
        return "\n".join(lines)
    if not estimate.enough:
        return "\n".join([*lines, "  No prefix was looked up twice: no cache size would have had a hit."])
    lines += ["", *_table(estimate), ""]
    for sentence in _sentences(estimate):
        lines += wrapped(sentence, columns, first="  ")
    return "\n".join(lines)


def _measured(stream: Stream) -> str:
    asked = max(stream.asked, 1)
    return (
        f"{words.some(stream.admissions, 'admission')} of {words.some(stream.asked, 'token')} within"
        f" {words.duration(stream.last_ns - stream.first_ns)}: vLLM's own cache held {_share(stream.local / asked)}, the"
        f" connector loaded {_share(stream.taken / asked)}."
    )


def _capacity(estimate: Estimate) -> str:
    size = estimate.stream.chunk_size
    if estimate.capacity is None:
        return f"The capacity of its store is not known; it has chunks of {words.some(size, 'token')}."
    capacity = f"Its store may hold {words.some(estimate.capacity, 'chunk')} of {words.some(size, 'token')}"
    return f"{capacity}, {_bytes(estimate, estimate.capacity)} on each worker."


def _unhashed(stream: Stream) -> str:
    if not stream.unhashed:
        return ""
    return (
        f"{words.some(stream.unhashed, 'admission')} had no recorded block hashes and count as no accesses: record at level"
        " detailed."
    )


def _table(estimate: Estimate) -> list[str]:
    asked = max(estimate.stream.asked, 1)
    rows = [["store", "", "given", "least recently used", "at most", "prefill saved an hour"]]
    for point in estimate.points:
        error = f" ± {point.error / asked * 100:.1f}" if point.error else ""
        rows.append(
            [
                words.some(point.chunks, "chunk"),
                "" if point.bytes is None else words.size(point.bytes),
                f"{_share(point.hits / asked)}{error}",
                _share(point.least_recent / asked),
                _share(point.bound / asked),
                words.NOTHING if (saved := _an_hour(estimate, point)) is None else words.duration(saved),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines[0] = style(lines[0], dim=True)
    for n, point in enumerate(estimate.points, start=1):
        lines[n] += "  today" if point.chunks == estimate.capacity else ""
    return lines


def _sentences(estimate: Estimate) -> list[str]:
    today = next((point for point in estimate.points if point.chunks == estimate.capacity), None)
    more = [point for point in estimate.points if today is not None and point.hits > today.hits]
    sentences = [_gain(estimate, today, point) for point in more[:MAX_GAINS] if today is not None]
    sentences.append(
        f"Beyond {words.some(estimate.enough, 'chunk')}{_in_bytes(estimate, estimate.enough)} nothing is gained: all"
        " remaining misses are first accesses."
    )
    return sentences


def _gain(estimate: Estimate, today: Point, point: Point) -> str:
    """The gain of a larger store over today's."""
    more = f"{_bytes(estimate, point.chunks - today.chunks)} more would have"
    then, now = _an_hour(estimate, point), _an_hour(estimate, today)
    if then is None or now is None:
        return f"{more} had {words.some(point.hits - today.hits, 'more hit token')}."
    return f"{more} saved {words.duration(then - now)} of prefill an hour."


def _an_hour(estimate: Estimate, point: Point) -> int | None:
    """The prefill that a store saves in an hour, in nanoseconds; None where the rate of prefill is not known."""
    hours = estimate.stream.hours
    return None if point.seconds is None or not hours else round(point.seconds / hours * SECOND_NS)


def _bytes(estimate: Estimate, chunks: int) -> str:
    chunk_bytes = estimate.stream.chunk_bytes
    return words.some(chunks, "chunk") if chunk_bytes is None else words.size(chunks * chunk_bytes)


def _in_bytes(estimate: Estimate, chunks: int) -> str:
    return "" if estimate.stream.chunk_bytes is None else f" ({_bytes(estimate, chunks)} on each worker)"


def _share(share: float) -> str:
    return f"{share * 100:.1f} %"
