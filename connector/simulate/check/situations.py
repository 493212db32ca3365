"""The situations of a run, by which workloads are chosen: finer than the points that it reached, and coarse enough to be few.

A situation is a point with what was open when it was reached, two points that a request reached one after the other, or two
that one event reached. How often a point was reached counts in powers of two, as in AFL's coverage of branches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from kvtrail.connector.simulate.check.reached import Moment

SEVERAL = 2
"""Transfers and preempted requests from which on their number makes no difference."""


def situations(moments: Iterable[Moment]) -> frozenset[str]:
    """All situations of a run. They depend on its scenario and the connector alone, not on time."""
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    last: dict[tuple[str, str], str] = {}
    for moment in moments:
        first = moment.points[0]
        around = _around(moment)
        for point in moment.points:
            counts[point] += 1
            seen.add(f"{point} ({around})")
        seen.update(f"{one} + {other}" for one, other in combinations(sorted(set(moment.points)), 2))
        if moment.request is not None:
            if (before := last.get(moment.request)) is not None:
                seen.update(f"{before} > {point}" for point in moment.points)
            last[moment.request] = first
    seen.update(f"{point} x{1 << count.bit_length() - 1}" for point, count in counts.items())
    return frozenset(seen)


def _around(moment: Moment) -> str:
    """What was open when it was reached."""
    counts = {"loads": moment.loads, "stores": moment.stores, "preempted": moment.preempted, "epoch": moment.epoch}
    happened = {"reset": moment.was_reset, "full": moment.was_full}
    parts = [f"{name} {min(count, SEVERAL)}" for name, count in counts.items() if count]
    return ", ".join([*parts, *(name for name, has in happened.items() if has)])
