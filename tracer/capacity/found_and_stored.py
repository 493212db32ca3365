"""The hits of LMCache's local CPU backend, with its own least-recently-used order.

What a lookup finds is used from its end to its head, so that heads stay. What is missing is stored in the order of its
tokens, so that of a new prefix the head is evicted first. What is found differs from capacity to capacity, and with it the
order: no single pass over the touches has all capacities, as it has for other stores (`distances`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvtrail.tracer.capacity.touches import Touch


def given_by(touches: Iterable[Touch | None], capacity: int) -> int:
    """The tokens that a store of so many chunks would have given; None means that it was emptied."""
    store: OrderedDict[bytes, None] = OrderedDict()
    given = 0
    for touch in touches:
        if touch is None:
            store.clear()
            continue
        keys, found = touch.keys, 0
        if touch.used is not None:  # a lookup; the others only store
            while found < len(keys) and keys[found] in store:
                found += 1
            given += sum(touch.wanted[:found])
            for key in reversed(keys[:found]):
                store.move_to_end(key)
        for key in keys[found : touch.used]:
            store.setdefault(key)
            if len(store) > capacity:
                store.popitem(last=False)
    return given
