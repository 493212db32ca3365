"""The most that any policy could have had from a store: what one that knows the future would keep.

Between two uses of a chunk it is kept or not; kept, it takes one place for that time. A use that wants nothing, since vLLM
held the chunk itself, need not be kept for, but the chunk can be stored then. So the most hits are the most intervals of
which no more than C overlap: go through them by their beginnings, and whenever there are too many, give up the one that
ends last (Faigle and Nawijn, 1995; for whole chunks, Belady's rule with bypassing). That a chunk counts only behind its
prefix is left out, so the bound is never too low.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from kvtrail.tracer.capacity.touches import Touch

Interval = tuple[int, int, int]
"""From one use of a chunk to the next that wants it, in touches, and the tokens that it wants."""


def intervals(touches: Iterable[Touch | None]) -> list[Interval]:
    """The times for which keeping a chunk would have spared tokens, by their beginnings; None means that the store was
    emptied."""
    last: dict[bytes, int] = {}
    found = []
    for now, touch in enumerate(touches):
        if touch is None:
            last.clear()
            continue
        for n, key in enumerate(touch.keys):
            tokens = touch.wanted[n] if n < len(touch.wanted) else 0
            if tokens and key in last:
                found.append((last[key], now, tokens))
            if key in last or touch.used is None or n < touch.used:  # who has kept it has it still
                last[key] = now
    return sorted(found)


def most_hits(held: Sequence[Interval], capacity: int) -> int:
    """The most tokens that a store of so many chunks could have given.

    It keeps as many intervals as can be kept. Where some are worth less than others, the count is made up of the dearest, so
    that the bound holds."""
    kept: list[tuple[int, int]] = []
    """The intervals that are being kept, the one that ends last first."""
    given_up: set[int] = set()
    ends: list[tuple[int, int]] = []
    open_now = 0
    for number, (begin, end, _) in enumerate(held):
        while ends and ends[0][0] <= begin:
            if heappop(ends)[1] not in given_up:
                open_now -= 1
        heappush(kept, (-end, number))
        heappush(ends, (end, number))
        open_now += 1
        if open_now > capacity:
            given_up.add(heappop(kept)[1])
            open_now -= 1
        if len(kept) > 2 * len(ends) + capacity:
            kept = [each for each in kept if -each[0] > begin]
            heapify(kept)
    dearest = sorted((tokens for _, _, tokens in held), reverse=True)
    return sum(dearest[: len(held) - len(given_up)])
