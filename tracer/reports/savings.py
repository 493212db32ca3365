"""The savings of the offload as text: sums of each connector, and a table of the hit rates of other store sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from click import style

from kvtrail.tracer.capacity.memory_curves import MemoryCurve
from kvtrail.tracer.history.savings import Saved
from kvtrail.tracer.model import words
from kvtrail.tracer.reports.terminal import plain, wrapped

SECOND_NS = 10**9
STEPS = (0.25, 0.5, 1, 2, 4, 8)
"""The sizes in the table, as multiples of the current size or, if it is unknown, of the size beyond which hits stop
growing."""


def as_text(saved: Sequence[Saved], engine_names: Mapping[str, str], *, columns: int | None = None) -> str:
    """The report on all connectors."""
    return "\n\n".join(_one(each, engine_names, columns) for each in saved)


def _one(saved: Saved, engine_names: Mapping[str, str], columns: int | None) -> str:
    name = engine_names.get(saved.engine, saved.engine)
    lines = [style(plain(f"{saved.connector} in {name}"), bold=True)]
    lines += wrapped(_measured(saved), columns, first="  ")
    curve = saved.memory
    if curve is None:
        return "\n".join([*lines, "  No admission has block hashes, so other store sizes are not known."])
    lines += wrapped(_capacity(saved, curve), columns, first="  ")
    if not curve.points:
        return "\n".join([*lines, "  No prefix was asked for twice: no store size would have had a hit."])
    enough = curve.points[-1].chunks
    last = f"Beyond {_stored(curve, enough)} nothing is gained: all remaining misses are first accesses."
    return "\n".join([*lines, "", *_table(saved, curve), "", *wrapped(last, columns, first="  ")])


def _measured(saved: Saved) -> str:
    worth = saved.worth
    spared = words.some(worth.spared, "token")
    time = (
        ""
        if worth.prefill_saved_s is None
        else f", which takes {words.duration(round(worth.prefill_saved_s * SECOND_NS))}"
    )
    return (
        f"{words.some(worth.admissions, 'admission')} of {words.some(worth.asked, 'token')}: vLLM's own cache held"
        f" {words.percent(worth.local_share or 0)}, the connector loaded {words.percent(worth.hit_share or 0)}. It saved the"
        f" prefill of {spared}{time}."
    )


def _capacity(saved: Saved, curve: MemoryCurve) -> str:
    chunk = f"chunks of {words.some(curve.chunk_size, 'token')}"
    if (held := _today(saved, curve)) is None:
        return f"How much its store may hold is not known; it has {chunk}."
    return f"Its store may hold {_stored(curve, held)} on each worker, in {chunk}."


def _today(saved: Saved, curve: MemoryCurve) -> float | None:
    """The chunks that the store may hold; None if not known."""
    return saved.limit / curve.chunk_bytes if saved.limit and curve.chunk_bytes else None


def _table(saved: Saved, curve: MemoryCurve) -> list[str]:
    """A table of sizes, their share of the tokens that vLLM's own cache did not hold, and the saved prefill."""
    held = _today(saved, curve)
    around = held or curve.points[-1].chunks
    rows = [["store", "given", "prefill saved", ""]]
    for step in STEPS if held else (each for each in STEPS if each <= 1):
        given = curve.given(step * around)
        error = f" ± {200 * given.error:.1f}" if given.error else ""
        saves = None if saved.prefill_rate is None else given.share * curve.wanted / saved.prefill_rate
        rows.append(
            [
                _stored(curve, step * around),
                f"{given.share * 100:.1f} %{error}",
                words.NOTHING if saves is None else words.duration(round(saves * SECOND_NS)),
                "today" if held and step == 1 else "",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [style(lines[0], dim=True), *lines[1:]]


def _stored(curve: MemoryCurve, chunks: float) -> str:
    """A size in bytes, if the bytes of a chunk are known, or in chunks."""
    return words.some(round(chunks), "chunk") if curve.chunk_bytes is None else words.size(chunks * curve.chunk_bytes)
