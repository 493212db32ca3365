"""The miss-ratio curve, computed online in bounded memory, and kept as sums over time like the other savings.

A reuse distance is rounded up to an eighth of an octave of chunks, and each such capacity is a measure. So the measures of
any range of time, and of any engines, add up to their common curve. A reset of the store drops its accesses, as it would for
a store of any size. A restart of this process drops all accesses, and `memory:begun` marks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import ceil, inf, log2

from kvtrail.tracer.capacity.accesses import LMCACHE, Access, RequestPrefix, room_of
from kvtrail.tracer.capacity.reuse_distance import WHOLE, ReuseDistance, ReuseDistances
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event, RequestEnd, Reset, Schedule, Store
from kvtrail.tracer.events.hash_chains import Chain, split_hashes
from kvtrail.tracer.ledger.facts import Breakdown, Copied, Ended, Fact, Ran

MAX_FOLLOWED = 4096
"""Maximum number of chunks of one connector that are followed at a time; about 300 bytes each."""
MAX_CONNECTORS = 256
"""Maximum number of connectors that are followed at a time. The least recently used one is dropped first."""
STEPS = 8
"""Capacities in an octave."""
PREFIX = "memory:"
"""Prefix of the measures: `memory:wanted`, `memory:sampled`, and `memory:<group>:<step>` for tokens that are hits at
capacities from 2 ** (step / STEPS) chunks on. The group is empty if all chunks are followed. The step is empty if no capacity
is enough."""
WANTED, SAMPLED = f"{PREFIX}wanted", f"{PREFIX}sampled"
CHUNKS, CHUNK_TOKENS = f"{PREFIX}chunks", f"{PREFIX}chunk_tokens"
"""Accessed chunks, and their tokens: together they give the size of a chunk."""
BEGUN = f"{PREFIX}begun"
"""Counting of a connector starts here: chunks used before count as never used."""
STORED_TOKENS, STORED_BYTES = f"{PREFIX}stored_tokens", f"{PREFIX}stored_bytes"
"""Tokens and bytes that the first worker stored, if it reports bytes: together they give the bytes of a chunk."""
MAX_RUNNING = 100_000
"""Maximum number of requests that are followed to their end."""
MAX_AHEAD = 10_000
"""Maximum number of requests whose step or end is remembered until their admission is explained."""
STRETCH_S = 600
"""Interval of one sum in seconds. Sums by the minute would have too many capacities."""
Owner = tuple[str, str]
"""An engine, and one of its connectors or requests."""


class OnlineMissRatioCurve:
    """Follows the accesses to each connector's store. Each method returns the measures to add."""

    def __init__(self, *, most_followed: int = MAX_FOLLOWED) -> None:
        self._most_followed = most_followed
        self._distances = BoundedDict[Owner, ReuseDistances](MAX_CONNECTORS)
        self._running = BoundedDict[Owner, RequestPrefix](MAX_RUNNING)
        """Admitted requests, by engine and request."""
        self._ahead = BoundedDict[Owner, Schedule | RequestEnd](MAX_AHEAD)
        """By engine and request, the last step or end that arrived before the admission was explained. The explanation may
        wait for a missing event of its recorder."""

    def admitted(self, breakdown: Breakdown) -> Mapping[str, int]:
        """Enter an allocation of blocks for a request."""
        lookup, event = breakdown.lookup, breakdown.event
        size = lookup.chunk_size or lookup.block_size or 0
        if not size or not breakdown.chain:
            return {}
        owner = event.engine, event.request or ""
        running = RequestPrefix(event, Chain(hashes=breakdown.chain), size, lookup.block_size or size)
        self._running[owner] = running
        measures = self._accessed(running, running.admit(lookup))
        if (ahead := self._ahead.get(owner)) is not None:
            if isinstance(ahead, Schedule):
                del self._ahead[owner]
            measures.update(self._went_on(ahead))
        return measures

    def enter(self, fact: Fact) -> Mapping[str, int]:
        """Enter a fact; most do not concern a store."""
        match fact:
            case Ran() | Ended():
                return self._went_on(fact.event)
            case Copied():
                return _copied(fact.event)
            case _:
                return {}

    def _went_on(self, event: Schedule | RequestEnd) -> Mapping[str, int]:
        """Enter a step or the end of a request. The tokens that a step computes can be stored. At the end, the hashes of the
        generated tokens are recorded too."""
        owner = event.engine, event.request or ""
        running = self._running.get(owner)
        if running is None:
            self._ahead[owner] = event
            return {}
        computed = event.computed or 0
        if isinstance(event, Schedule):
            computed += event.scheduled
        else:
            del self._running[owner]
            if event.block_hashes:
                running.chain = Chain(hashes=list(running.chain.hashes))  # the other is the breakdown's
                running.chain.extend(event.block_first or 0, split_hashes(event.block_hashes))
        access = running.compute(computed)
        return {} if access is None else self._accessed(running, access)

    def reset(self, event: Reset) -> None:
        """Enter a connector's request to empty its store."""
        distances = self._distances.get((event.engine, event.connector_id))
        if distances is not None and event.succeeded is not False:
            distances.reset()

    def _accessed(self, running: RequestPrefix, access: Access) -> Counter[str]:
        """Enter an access."""
        event = running.alloc
        owner = (event.engine, event.connector_id)
        measures = Counter({CHUNKS: len(access.keys), CHUNK_TOKENS: len(access.keys) * running.chunk_size})
        distances = self._distances.get(owner)
        if distances is None:
            measures[BEGUN] = 1
            distances = self._distances[owner] = ReuseDistances(
                evicts_tails_first=event.connector not in LMCACHE, most_chunks=self._most_followed
            )
        self._distances.move_to_end(owner)
        for distance in distances.enter(access):
            measures[_measure(distance)] += round(distance.tokens)
        if wanted := sum(access.wanted):
            measures[WANTED] = wanted
            if distances.is_sample:
                measures[SAMPLED] = wanted
        return measures


def _copied(event: Event) -> Mapping[str, int]:
    """The measures of a worker's store, which give the size of a chunk."""
    if not isinstance(event, Store) or event.rank != 0 or (stored := room_of(event)) is None:
        return {}
    return {STORED_TOKENS: event.count, STORED_BYTES: stored}


def _measure(distance: ReuseDistance) -> str:
    group = "" if distance.group == WHOLE else distance.group
    step = "" if distance.chunks == inf else max(0, ceil(STEPS * log2(distance.chunks)))
    return f"{PREFIX}{group}:{step}"
