"""Delta debugging: the smallest part of a sequence that still has a property.

This is the reducing half of Zeller and Hildebrandt's ddmin ("Simplifying and isolating failure-inducing input", 2002): large
pieces are removed before small ones, down to single items, until no single item can be removed. It shrinks a recorded history
(`history.minimize`) or a failing workload (`kvtrail.connector.simulate.shrink`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Links = Sequence[Sequence[int]]
"""For each item, by its index, the indexes of its prerequisites, or of its dependents."""


def minimal(items: Sequence[Item], holds: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A part of independent items for which `holds` is true, in order; no single item can be removed. Early items are removed
    first, since failures of a workload often appear at its end."""
    every = range(len(items))
    kept = shrunk(
        every,
        [[index] for index in reversed(every)],
        dependents=[()] * len(items),
        holds=lambda kept: holds([items[index] for index in kept]),
    )
    return [items[index] for index in kept]


def shrunk(
    kept: Sequence[int], units: Sequence[Sequence[int]], *, dependents: Links, holds: Callable[[Sequence[int]], bool]
) -> Sequence[int]:
    """Remove units of items, each with its dependents, as long as `holds` is true for the rest.

    Args:
        kept: indexes of items, in order; `holds` must be true for them.
        units: items that are removed together: single items, or all items of a request. The last ones are tried first.
        dependents: for each item, the items that cannot exist without it.
        holds: whether a subset of items still has the property.

    Returns:
        The rest, in order; no single unit can be removed from it.
    """
    size = max(1, (len(units) + 1) // 2)
    while units:
        before = len(kept)
        for end in range(len(units), 0, -size):
            chosen = {index for unit in units[max(0, end - size) : end] for index in unit}
            gone = reachable(chosen, dependents)
            left = [index for index in kept if index not in gone]
            if len(left) < len(kept) and holds(left):
                kept = left
        present = set(kept)
        units = [unit for unit in units if not present.isdisjoint(unit)]
        if size == 1 and len(kept) == before:
            break
        size = max(1, min(size, len(units)) // 2)
    return kept


def inverted(links: Links) -> Links:
    """Dependents from prerequisites, and the other way round."""
    inverse: list[list[int]] = [[] for _ in links]
    for index, others in enumerate(links):
        for other in others:
            inverse[other].append(index)
    return inverse


def reachable(begin: Iterable[int], links: Links) -> set[int]:
    """The items that are reachable by links from some items, including these."""
    known = set(begin)
    open_ends = list(known)
    while open_ends:
        for index in links[open_ends.pop()]:
            if index not in known:
                known.add(index)
                open_ends.append(index)
    return known
