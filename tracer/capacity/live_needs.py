"""The curve as requests come: bounded, and kept as sums of minutes like everything else that the offload did.

What a touch needs is rounded up to an eighth of an octave of chunks, and each such capacity is a measure. So the curve of any
stretch of time, and of any engines, is the sum of theirs. A store that is emptied begins anew, as one of any size would. So
does all that is remembered when this process does: `memory:begun` says when.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2

from kvtrail.tracer.capacity.curve import Curve
from kvtrail.tracer.capacity.distances import WHOLE, Distances, Need
from kvtrail.tracer.capacity.stream import LMCACHE
from kvtrail.tracer.capacity.touches import Touch, keys_of, wanted_of
from kvtrail.tracer.causes.followed import Breakdown
from kvtrail.tracer.events.events import Alloc, RequestEnd, Reset, Schedule, Store
from kvtrail.tracer.events.hash_chains import split_hashes

MOST_FOLLOWED = 4096
"""Chunks of one connector that are followed at a time; some 300 bytes each."""
MOST_CONNECTORS = 256
"""Connectors that are followed at a time; the longest untouched is dropped first, and begins anew if it comes back."""
GROUPS = 16
"""Into which the chunks of a sample are sorted, to know its error."""
STEPS = 8
"""Capacities in an octave."""
PREFIX = "memory:"
"""Of the measures: `memory:wanted`, `memory:sampled`, and `memory:<group>:<step>` for tokens that are hits from a capacity
of 2 ** (step / STEPS) chunks on. The group is empty where all chunks are followed, the step where no capacity would do."""
WANTED, SAMPLED = f"{PREFIX}wanted", f"{PREFIX}sampled"
CHUNKS, CHUNK_TOKENS = f"{PREFIX}chunks", f"{PREFIX}chunk_tokens"
"""Chunks that were touched, and their tokens: what a chunk is."""
BEGUN = f"{PREFIX}begun"
"""That a connector is followed from now on: what it was asked for before counts as never used."""
STORED_TOKENS, STORED_BYTES = f"{PREFIX}stored_tokens", f"{PREFIX}stored_bytes"
"""What the first worker has stored, where it tells bytes: what a chunk takes."""
MOST_RUNNING = 100_000
"""Requests that are followed to their end."""
STRETCH_S = 600
"""The sums are of so many seconds: a minute has too many capacities in it."""
Owner = tuple[str, str]
"""An engine, and one of its connectors or requests."""


@dataclass(slots=True)
class _Running:
    """A request that was admitted.

    Attributes:
        admission: its latest one.
        chain: the hashes of its full blocks, as far as they are known.
        chunk_size, block_size: tokens of a chunk of the store, and of a block.
        done: how many of its chunks have been computed or loaded.
    """

    admission: Alloc
    chain: Sequence[bytes]
    chunk_size: int
    block_size: int
    done: int

    def keys(self, tokens: int) -> Sequence[bytes]:
        """The keys of the full chunks among its first tokens, as far as they are known."""
        return keys_of(self.chain, tokens, chunk_size=self.chunk_size, block_size=self.block_size)


class LiveNeeds:
    """Follows what each connector is asked for. Each call returns the measures to be added for it."""

    def __init__(self, *, most_followed: int = MOST_FOLLOWED) -> None:
        self._most_followed = most_followed
        self._distances: OrderedDict[Owner, Distances] = OrderedDict()
        self._running: OrderedDict[Owner, _Running] = OrderedDict()
        """By engine and request: those that were admitted."""

    def admitted(self, breakdown: Breakdown) -> Counter[str]:
        """A request was given blocks."""
        lookup, event = breakdown.lookup, breakdown.event
        size = lookup.chunk_size or lookup.block_size or 0
        if not size or not breakdown.chain:
            return Counter()
        done = (lookup.computed + event.allocated) // size
        running = _Running(event, breakdown.chain, size, lookup.block_size or size, done)
        self._running[event.engine, event.request or ""] = running
        if len(self._running) > MOST_RUNNING:
            self._running.popitem(last=False)
        keys = running.keys(lookup.total)
        wanted = wanted_of(len(keys), size, computed=lookup.computed, total=lookup.total)
        return self._touched(running, Touch(keys, wanted, done))

    def ran(self, event: Schedule) -> Counter[str]:
        """A step runs a request: what it computes can be stored."""
        running = self._running.get((event.engine, event.request or ""))
        return Counter() if running is None else self._computed(running, event.computed + event.scheduled)

    def ended(self, event: RequestEnd) -> Counter[str]:
        """A request has ended: by now the hashes of what it has generated are told as well."""
        running = self._running.pop((event.engine, event.request or ""), None)
        if running is None:
            return Counter()
        if event.block_hashes:
            running.chain = [*running.chain[: event.block_first or 0], *split_hashes(event.block_hashes)]
        return self._computed(running, event.computed or 0)

    def _computed(self, running: _Running, computed: int) -> Counter[str]:
        if computed // running.chunk_size <= running.done or len(keys := running.keys(computed)) <= running.done:
            return Counter()
        running.done = len(keys)
        return self._touched(running, Touch(keys))

    def reset(self, event: Reset) -> None:
        """A connector was told to forget what it holds."""
        distances = self._distances.get((event.engine, event.connector_id))
        if distances is not None and event.succeeded is not False:
            distances.reset()

    def stored(self, event: Store) -> Counter[str]:
        """A worker has stored: what a chunk takes."""
        if event.bytes is None or event.rank != 0:
            return Counter()
        return Counter({STORED_TOKENS: event.count, STORED_BYTES: event.bytes})

    def _touched(self, running: _Running, touch: Touch) -> Counter[str]:
        """Use the chunks of a touch."""
        event = running.admission
        owner = (event.engine, event.connector_id)
        measures = Counter({CHUNKS: len(touch.keys), CHUNK_TOKENS: len(touch.keys) * running.chunk_size})
        distances = self._distances.get(owner)
        if distances is None:
            measures[BEGUN] = 1
            distances = self._distances[owner] = Distances(
                heads_stay=event.connector not in LMCACHE, most_chunks=self._most_followed, groups=GROUPS
            )
            if len(self._distances) > MOST_CONNECTORS:
                self._distances.popitem(last=False)
        self._distances.move_to_end(owner)
        for need in distances.enter(touch):
            measures[_measure(need)] += round(need.tokens)
        if wanted := sum(touch.wanted):
            measures[WANTED] = wanted
            if distances.is_sample:
                measures[SAMPLED] = wanted
        return measures


def curve_of_measures(measures: Mapping[str, int]) -> Curve:
    """The curve that sums of measures stand for; others than the curve's are left out."""
    curve = Curve(groups=GROUPS)
    sampled = measures.get(SAMPLED, 0)
    needs = [
        _need(name, tokens) for name, tokens in measures.items() if name.startswith(PREFIX) and name.count(":") == 2
    ]
    curve.enter(measures.get(WANTED, 0) - sampled, [need for need in needs if need.group == WHOLE], is_sample=False)
    curve.enter(sampled, [need for need in needs if need.group != WHOLE], is_sample=True)
    return curve


def capacities(curve: Curve) -> list[float]:
    """Those of the kept capacities up to which something is gained, in chunks."""
    enough = curve.saturates_at()
    return [2 ** (step / STEPS) for step in range(ceil(STEPS * log2(enough)) + 1)] if enough else []


def _measure(need: Need) -> str:
    group = "" if need.group == WHOLE else need.group
    step = "" if need.chunks == inf else max(0, ceil(STEPS * log2(need.chunks)))
    return f"{PREFIX}{group}:{step}"


def _need(measure: str, tokens: int) -> Need:
    _, group, step = measure.split(":")
    return Need(int(group) if group else WHOLE, 2 ** (int(step) / STEPS) if step else inf, tokens)
