"""The hits of LMCache's local CPU backend, in its own eviction order.

Chunks that a lookup finds are marked as used from the last to the first, so that heads stay. Missing chunks are stored in
token order, so the head of a new prefix is evicted first. Which chunks are found depends on the capacity, and so does the
order: LMCache's order is no stack algorithm, and every capacity needs a pass of its own (others share one, `reuse_distance`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvtrail.tracer.capacity.accesses import Access


def lmcache_hits(accesses: Iterable[Access | None], capacity: int) -> int:
    """The tokens that are hits in a store of `capacity` chunks; None stands for a reset of the store."""
    store: OrderedDict[bytes, None] = OrderedDict()
    hits = 0
    for access in accesses:
        if access is None:
            store.clear()
            continue
        keys, found = access.keys, 0
        if access.used is not None:  # a lookup; the others only store
            while found < len(keys) and keys[found] in store:
                found += 1
            hits += sum(access.wanted[:found])
            for key in reversed(keys[:found]):
                store.move_to_end(key)
        for key in keys[found : access.used]:
            store.setdefault(key)
            if len(store) > capacity:
                store.popitem(last=False)
    return hits
