"""When the engines of a service were last deployed, by their launches. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import pairwise
from typing import TypeVar

from kvtrail.tracer.liveness.engine import Launch
from kvtrail.tracer.liveness.recorders import OVERLAP_NS

Group = TypeVar("Group", bound=Hashable)


def last_deploys(launches: Iterable[Launch], group_of: Callable[[str], Group]) -> dict[Group, int]:
    """By group of engines: when its last deploy began, Unix nanoseconds. Launches of a group with at most `OVERLAP_NS` from
    one to the next are one deploy, as in a rollout. The first that is known is none: nobody knows what was there before."""
    begins: dict[Group, list[int]] = {}
    for launch in launches:
        begins.setdefault(group_of(launch.engine), []).append(launch.began_ns)
    found = {}
    for group, began_ns in begins.items():
        began_ns.sort()
        later = [now for before, now in pairwise(began_ns) if now - before > OVERLAP_NS]
        if later:
            found[group] = later[-1]
    return found
