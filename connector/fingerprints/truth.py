"""What blocks hold that were computed under a hash, and what a block that holds something else holds instead.

A hash has a set of fingerprints and not one: results of the same tokens may differ in their last bits from batch to batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

MOST_HASHES = 65_536
"""Hashes remembered."""
MOST_VERSIONS = 64
"""Contents of one hash that are remembered, of those computed rightly and of those that were not."""
VERSIONS_BY_LAYER = 4
"""Contents of one hash of which each layer's fingerprint is remembered."""
FILTER_BITS = 1 << 23
_SHIFTS, _GROUP = (0, 20, 40), 0x9E37
ZEROS = "zeros"
POISON = "poison"
UNKNOWN = "unknown"
Key = tuple[int, int]
"""The number of a KV cache group, and the last 64 bits of a block's hash."""


class Place(NamedTuple):
    """Where a content was computed: the request, the first token of the block in it, and what the request's KV and hashes
    depend on besides tokens."""

    request_id: str
    token: int
    identity: str


class Wrong(NamedTuple):
    """A block does not hold what was computed under its hash, but this: `zeros`, `poison`, `unknown`, or where it was
    computed. `layers` are the numbers of those that differ, where known."""

    holds: str | Place
    layers: tuple[int, ...]


@dataclass(slots=True)
class _Known:
    """What is known of a hash: fingerprints that were computed rightly, those that were not, and by layer the latest ones."""

    right: dict[int, None] = field(default_factory=dict)
    poison: dict[int, None] = field(default_factory=dict)
    by_layer: list[tuple[int, ...]] = field(default_factory=list)


class Truth:
    """What one rank's blocks hold, by hash.

    Whatever is left out, because there is no room or because nobody could tell, makes the set of its hash incomplete: nothing
    is wrong then for not being in it.
    """

    def __init__(self, *, own: bool) -> None:
        """`own`: this engine alone writes to the connector's store."""
        self._own = own
        self._known: OrderedDict[Key, _Known] = OrderedDict()
        self._computed_at: dict[int, tuple[Place, Key]] = {}
        """Contents that were computed rightly."""
        self._poison: dict[int, Key] = {}
        self._incomplete = Filter()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def incomplete(self) -> Filter:
        """The hashes of which something that is right may be unknown."""
        return self._incomplete

    def learn(self, key: Key, fingerprint: int, layers: Sequence[int], place: Place) -> None:
        """A block was computed under the hash, by a request that has met nothing wrong."""
        known = self._of(key)
        if fingerprint in known.right:
            return
        known.right[fingerprint] = None
        self._computed_at.setdefault(fingerprint, (place, key))
        known.by_layer = [*known.by_layer[1 - VERSIONS_BY_LAYER :], tuple(layers)]
        self._bound(key, known.right)

    def poison(self, key: Key, fingerprint: int) -> None:
        """A block was computed under the hash after something wrong."""
        known = self._of(key)
        known.poison[fingerprint] = None
        self._poison.setdefault(fingerprint, key)
        self._bound(key, known.poison)

    def doubt(self, key: Key) -> None:
        """A block under the hash may hold what is right, or not."""
        self._incomplete.add(key)

    def forget(self) -> None:
        """Other weights compute other contents."""
        for key in self._known:
            self._incomplete.add(key)
        self._known.clear()
        self._computed_at.clear()
        self._poison.clear()

    def is_right(self, key: Key, fingerprint: int) -> bool:
        """Whether this was computed under the hash."""
        known = self._known.get(key)
        return known is not None and fingerprint in known.right

    def judge(self, key: Key, fingerprint: int, layers: Sequence[int], identity: str) -> Wrong | bool | None:
        """Whether a block holds what was computed under its hash: True, what it is instead, or None where nobody knows.
        Another hash's content proves itself only between requests of one identity: a salt changes hashes and not KV."""
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            if fingerprint in known.right:
                return True
        holds = self._holds(fingerprint, key, identity)
        if holds is UNKNOWN and (known is None or not self._own or key in self._incomplete):
            return None
        return Wrong(holds, () if known is None else _differing(layers, known.by_layer))

    def _holds(self, fingerprint: int, key: Key, identity: str) -> str | Place:
        if fingerprint == 0:
            return ZEROS
        place, of = self._computed_at.get(fingerprint, (None, key))
        if place is not None and of != key and place.identity == identity:
            return place
        return POISON if fingerprint in self._poison else UNKNOWN

    def _of(self, key: Key) -> _Known:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known()
            if len(self._known) > MOST_HASHES:
                oldest, forgotten = self._known.popitem(last=False)
                self._incomplete.add(oldest)
                self._drop(oldest, (*forgotten.right, *forgotten.poison))
        self._known.move_to_end(key)
        return known

    def _bound(self, key: Key, versions: dict[int, None]) -> None:
        if len(versions) > MOST_VERSIONS:
            oldest = next(iter(versions))
            del versions[oldest]
            self._incomplete.add(key)
            self._drop(key, (oldest,))

    def _drop(self, key: Key, fingerprints: Iterable[int]) -> None:
        for each in fingerprints:
            if self._computed_at.get(each, (None, None))[1] == key:
                del self._computed_at[each]
            if self._poison.get(each) == key:
                del self._poison[each]


class Filter:
    """A set of keys that never grows: those that were added are in it, and once there are many, some others too."""

    def __init__(self) -> None:
        self._bits = bytearray(FILTER_BITS // 8)
        self._is_empty = True

    def add(self, key: Key) -> None:
        self._is_empty = False
        for place in _places(key):
            self._bits[place >> 3] |= 1 << (place & 7)

    def add_all(self, group: int, numbers: np.ndarray[Any, np.dtype[Any]]) -> None:
        """Add keys of one group: uint64."""
        bits = np.frombuffer(self._bits, dtype=np.uint8)
        for shift in _SHIFTS:
            places = ((numbers >> np.uint64(shift)) + np.uint64(group * _GROUP % FILTER_BITS)) % np.uint64(FILTER_BITS)
            np.bitwise_or.at(bits, places >> np.uint64(3), (1 << (places & np.uint64(7))).astype(np.uint8))
        self._is_empty = self._is_empty and not len(numbers)

    def __contains__(self, key: Key) -> bool:
        return not self._is_empty and all(self._bits[place >> 3] >> (place & 7) & 1 for place in _places(key))


def _places(key: Key) -> Iterator[int]:
    """A hash is random already: parts of it are."""
    group, number = key
    for shift in _SHIFTS:
        yield ((number >> shift) + group * _GROUP) % FILTER_BITS


def _differing(layers: Sequence[int], versions: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The layers that differ from the version that is most like these."""
    found = [
        tuple(n for n, (one, other) in enumerate(zip(layers, version, strict=True)) if one != other)
        for version in versions
    ]
    return min(found, key=len, default=())
