"""The full fingerprints that were computed under each hash.

A hash has a set of fingerprints and not one: results of the same tokens may differ in their last bits from batch to batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvtrail.connector.fingerprints.bloom_filter import BloomFilter, Key
from kvtrail.connector.fingerprints.mismatch import CONTAMINATED, UNKNOWN, ZEROS, Match, Mismatch, Origin
from kvtrail.tracer.events.bounded import BoundedDict

MAX_HASHES = 65_536
"""Hashes remembered."""
MAX_VERSIONS = 64
"""Contents of one hash that are remembered, of those computed rightly and of those that were not."""
VERSIONS_BY_LAYER = 4
"""Contents of one hash with remembered fingerprints of each layer."""


@dataclass(slots=True)
class _Versions:
    """The fingerprints of one hash: those that were computed rightly, those that were not, and by layer the latest ones."""

    right: dict[int, None] = field(default_factory=dict)
    contaminated: dict[int, None] = field(default_factory=dict)
    by_layer: list[tuple[int, ...]] = field(default_factory=list)


class FullReference:
    """What one rank's blocks hold, by hash.

    Whatever is left out, because there is no room or because nobody could know, makes the set of its hash incomplete: nothing
    is a mismatch then for not being in it.
    """

    def __init__(self, *, own: bool) -> None:
        """`own`: this engine alone writes to the connector's store."""
        self._own = own
        self._by_hash: BoundedDict[Key, _Versions] = BoundedDict(MAX_HASHES, on_drop=self._forget)
        self._origins: dict[int, tuple[Origin, Key]] = {}
        """Contents that were computed rightly."""
        self._contaminated: dict[int, Key] = {}
        self._incomplete = BloomFilter()

    def __len__(self) -> int:
        return len(self._by_hash)

    @property
    def incomplete(self) -> BloomFilter:
        """The hashes with right contents that may be unknown."""
        return self._incomplete

    def add(self, key: Key, fingerprint: int, layers: Sequence[int], origin: Origin) -> None:
        """A block was computed under the hash, by a request that has met no mismatch."""
        versions = self._of(key)
        if fingerprint in versions.right:
            return
        versions.right[fingerprint] = None
        self._origins.setdefault(fingerprint, (origin, key))
        versions.by_layer = [*versions.by_layer[1 - VERSIONS_BY_LAYER :], tuple(layers)]
        self._bound(key, versions.right)

    def add_contaminated(self, key: Key, fingerprint: int) -> None:
        """A block was computed under the hash after a mismatch."""
        versions = self._of(key)
        versions.contaminated[fingerprint] = None
        self._contaminated.setdefault(fingerprint, key)
        self._bound(key, versions.contaminated)

    def mark_incomplete(self, key: Key) -> None:
        """A block under the hash may hold what is right, or not."""
        self._incomplete.add(key)

    def clear(self) -> None:
        """Other weights compute other contents."""
        for key in self._by_hash:
            self._incomplete.add(key)
        self._by_hash.clear()
        self._origins.clear()
        self._contaminated.clear()

    def contains(self, key: Key, fingerprint: int) -> bool:
        """Whether this was computed under the hash."""
        versions = self._by_hash.get(key)
        return versions is not None and fingerprint in versions.right

    def match(self, key: Key, fingerprint: int, layers: Sequence[int], identity: str) -> Match:
        """Whether a block holds what was computed under its hash. Another hash's content proves itself only between requests
        of one identity: a salt changes hashes and not KV."""
        versions = self._by_hash.get(key)
        if versions is not None:
            self._by_hash.move_to_end(key)
            if fingerprint in versions.right:
                return True
        holds = self._holds(fingerprint, key, identity)
        if holds is UNKNOWN and (versions is None or not self._own or key in self._incomplete):
            return None
        return Mismatch(holds, () if versions is None else _differing(layers, versions.by_layer))

    def _holds(self, fingerprint: int, key: Key, identity: str) -> str | Origin:
        if fingerprint == 0:
            return ZEROS
        origin, of = self._origins.get(fingerprint, (None, key))
        if origin is not None and of != key and origin.identity == identity:
            return origin
        return CONTAMINATED if fingerprint in self._contaminated else UNKNOWN

    def _of(self, key: Key) -> _Versions:
        versions = self._by_hash.get(key)
        if versions is None:
            versions = self._by_hash[key] = _Versions()
        self._by_hash.move_to_end(key)
        return versions

    def _forget(self, key: Key, versions: _Versions) -> None:
        self._incomplete.add(key)
        self._drop(key, (*versions.right, *versions.contaminated))

    def _bound(self, key: Key, versions: dict[int, None]) -> None:
        if len(versions) > MAX_VERSIONS:
            oldest = next(iter(versions))
            del versions[oldest]
            self._incomplete.add(key)
            self._drop(key, (oldest,))

    def _drop(self, key: Key, fingerprints: Iterable[int]) -> None:
        for each in fingerprints:
            if self._origins.get(each, (None, None))[1] == key:
                del self._origins[each]
            if self._contaminated.get(each) == key:
                del self._contaminated[each]


def _differing(layers: Sequence[int], versions: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The layers that differ from the version that is most like these."""
    found = [
        tuple(n for n, (one, other) in enumerate(zip(layers, version, strict=True)) if one != other)
        for version in versions
    ]
    return min(found, key=len, default=())
