"""The curve as requests come: bounded, and kept as sums of minutes like everything else that the offload did.

What a touch needs is rounded up to an eighth of an octave of chunks, and each such capacity is a measure. So the curve of any
stretch of time, and of any engines, is the sum of theirs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from math import ceil, inf, log2

from kvtrail.tracer.capacity.curve import Curve
from kvtrail.tracer.capacity.distances import WHOLE, Distances, Need
from kvtrail.tracer.capacity.touches import Touch

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
STORED_TOKENS, STORED_BYTES = f"{PREFIX}stored_tokens", f"{PREFIX}stored_bytes"
"""What the first worker has stored, where it tells bytes: what a chunk takes."""
Owner = tuple[str, str]
"""An engine, and one of its connectors."""


class LiveNeeds:
    """Follows what each connector is asked for."""

    def __init__(self, *, most_followed: int = MOST_FOLLOWED) -> None:
        self._most_followed = most_followed
        self._distances: OrderedDict[Owner, Distances] = OrderedDict()

    def touched(self, owner: Owner, touch: Touch, *, chunk_size: int, heads_stay: bool) -> Counter[str]:
        """Use a touch's chunks, of `chunk_size` tokens each; returns the measures to be added for it."""
        distances = self._distances.get(owner)
        if distances is None:
            distances = self._distances[owner] = Distances(
                heads_stay=heads_stay, most_chunks=self._most_followed, groups=GROUPS
            )
            if len(self._distances) > MOST_CONNECTORS:
                self._distances.popitem(last=False)
        self._distances.move_to_end(owner)
        measures = Counter({CHUNKS: len(touch.keys), CHUNK_TOKENS: len(touch.keys) * chunk_size})
        for need in distances.enter(touch):
            measures[_measure(need)] += round(need.tokens)
        if wanted := sum(touch.wanted):
            measures[WANTED] = wanted
            if distances.is_sample:
                measures[SAMPLED] = wanted
        return measures

    def reset(self, owner: Owner) -> None:
        """A connector's store has forgotten everything."""
        if (distances := self._distances.get(owner)) is not None:
            distances.reset()

    def forget(self, engine: str) -> None:
        """Drop an engine's connectors."""
        for owner in [owner for owner in self._distances if owner[0] == engine]:
            del self._distances[owner]


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
