"""Delta debugging: from a set of events to a smaller one that still does what it must.

The method is Zeller and Hildebrandt's ddmin, cutting only: large pieces are tried before small ones, and at last each single
one until none can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Rests = Sequence[Sequence[int]]
"""For each event, by its index, other events: those that it rests on, or those that rest on it."""


def inverted(rests: Rests) -> Rests:
    """From what each event rests on to what rests on each event."""
    resting: list[list[int]] = [[] for _ in rests]
    for index, grounds in enumerate(rests):
        for ground in grounds:
            resting[ground].append(index)
    return resting


def reached(begun: Iterable[int], rests: Rests) -> set[int]:
    """The events that can be reached from some of them, these included."""
    known = set(begun)
    open_ends = list(known)
    while open_ends:
        for index in rests[open_ends.pop()]:
            if index not in known:
                known.add(index)
                open_ends.append(index)
    return known


def reduced(
    kept: Sequence[int], units: Sequence[Sequence[int]], *, resting: Rests, holds: Callable[[Sequence[int]], bool]
) -> Sequence[int]:
    """Take out units of events, and with each what rests on it, as long as what is left `holds`.

    Args:
        kept: indexes of events, in order; they must hold.
        units: what is taken out together, in order: single events, or all those of a request.
        resting: what rests on each event.
        holds: whether a choice of events still does what it must.

    Returns:
        What is left, in order: no single unit of it can go.
    """
    size = max(1, (len(units) + 1) // 2)
    while units:
        before = len(kept)
        for end in range(len(units), 0, -size):  # late events first: less rests on them
            chosen = {index for unit in units[max(0, end - size) : end] for index in unit}
            gone = reached(chosen, resting)
            left = [index for index in kept if index not in gone]
            if len(left) < len(kept) and holds(left):
                kept = left
        held = set(kept)
        units = [unit for unit in units if not held.isdisjoint(unit)]
        if size == 1 and len(kept) == before:
            break
        size = max(1, min(size, len(units)) // 2)
    return kept
