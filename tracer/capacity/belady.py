"""The offline optimum: an upper bound on the hits of every eviction policy (Belady, with bypassing).

Between two accesses a chunk is kept or not; if kept, it takes one slot for that interval. An access to a chunk that vLLM
itself held gains nothing from a hit, but the chunk can be stored then. So the most hits are the largest set of intervals with
at most C that overlap: scan them by their starts, and whenever too many are open, drop the one that ends last (Faigle and
Nawijn, 1995; for whole chunks this is Belady's rule with bypassing). It ignores that a chunk is a hit only behind its prefix,
so the bound is never too low.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from kvtrail.tracer.capacity.accesses import Access

Interval = tuple[int, int, int]
"""From one access to a chunk to the next one that wants it, as numbers of accesses, and the tokens that a hit saves."""


def reuse_intervals(accesses: Iterable[Access | None]) -> list[Interval]:
    """The intervals over which keeping a chunk would have saved tokens, sorted by start; None stands for a reset of the
    store."""
    last: dict[bytes, int] = {}
    found = []
    for now, access in enumerate(accesses):
        if access is None:
            last.clear()
            continue
        for n, key in enumerate(access.keys):
            tokens = access.wanted[n] if n < len(access.wanted) else 0
            if tokens and key in last:
                found.append((last[key], now, tokens))
            if key in last or access.used is None or n < access.used:  # a chunk that was kept is still there
                last[key] = now
    return sorted(found)


def upper_bound(held: Sequence[Interval], capacity: int) -> int:
    """The most tokens that any policy could have hit in a store of `capacity` chunks.

    It keeps the largest number of intervals. Where they differ in tokens, it counts that many of the most valuable ones, so
    that the bound holds."""
    kept: list[tuple[int, int]] = []
    """The open intervals that are kept, as a heap: the one that ends last comes first."""
    dropped: set[int] = set()
    ends: list[tuple[int, int]] = []
    open_now = 0
    for number, (begin, end, _) in enumerate(held):
        while ends and ends[0][0] <= begin:
            if heappop(ends)[1] not in dropped:
                open_now -= 1
        heappush(kept, (-end, number))
        heappush(ends, (end, number))
        open_now += 1
        if open_now > capacity:
            dropped.add(heappop(kept)[1])
            open_now -= 1
        if len(kept) > 2 * len(ends) + capacity:
            kept = [each for each in kept if -each[0] > begin]
            heapify(kept)
    most_valuable = sorted((tokens for _, _, tokens in held), reverse=True)
    return sum(most_valuable[: len(held) - len(dropped)])
