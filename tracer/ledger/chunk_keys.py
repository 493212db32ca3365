"""The chunks that a connector's store holds, by key, as far as its events show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.model.findings import Unknown

MAX_KEYS = 100_000
"""Maximum number of keys remembered as held, and as absent; beyond that, all of them are forgotten."""


@dataclass(slots=True)
class ChunkKeys:
    """The known keys in one connector's store.

    Attributes:
        lost: why the state of some keys is unknown; None while every key that is not held is
            absent.
        unnamed: whether the connector also stores chunks without naming their keys.
    """

    lost: Unknown | None = None
    unnamed: bool = False
    _held: set[str] = field(default_factory=set)
    _absent: set[str] = field(default_factory=set)
    _listed: set[str] | None = None
    """While the store lists its chunks: the chunks that it listed, or stored since the list began."""

    def holds(self, key: str) -> bool | None:
        """Whether the store holds the chunk; None if unknown."""
        if key in self._held:
            return True
        return False if not self.unnamed and (self.lost is None or key in self._absent) else None

    def holds_nothing_but(self, keys: Iterable[str]) -> bool:
        """Whether the store is known to hold only these chunks."""
        return self.lost is None and not self.unnamed and self._held.issubset(keys)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """The keys among these that the store is known not to hold."""
        held = self._held
        if self.lost is not None or self.unnamed:
            return [key for key in keys if self.holds(key) is False]
        return [key for key in keys if key not in held]

    def unsure(self, keys: Sequence[str]) -> Unknown | None:
        """Why the state of some of the keys is unknown; None if all are known."""
        if self.lost is None and not self.unnamed:
            return None
        if all(key in self._held for key in keys):
            return None
        return Unknown.UNNAMED if self.unnamed else self.lost

    def stored(self, keys: Sequence[str]) -> None:
        """Enter that the store now holds these chunks."""
        if len(self._held) >= MAX_KEYS:
            self.mark_gap(Unknown.MANY)
        self._held.update(keys)
        if self.lost is not None:
            self._absent.difference_update(keys)
            if self._listed is not None:
                self._listed.update(keys)

    def evicted(self, key: str) -> None:
        """Enter that the chunk was removed from the store."""
        self._held.discard(key)
        if self.lost is not None:
            if len(self._absent) >= MAX_KEYS:
                self._absent.clear()
            self._absent.add(key)
            if self._listed is not None:
                self._listed.discard(key)

    def cleared(self) -> None:
        """Enter that the store is empty."""
        self._held.clear()
        self._absent.clear()
        self.lost = self._listed = None

    def claimed(self, keys: Iterable[str]) -> None:
        """Enter a lookup's claim that the store holds these chunks. It is trusted for unknown chunks, so that the next claim
        can be judged; an earlier false claim about them is not found."""
        if self.lost is not None:
            if len(self._held) >= MAX_KEYS:
                self.mark_gap(Unknown.MANY)
            self._held.update(key for key in keys if key not in self._absent)

    def listed(self, keys: Sequence[str], *, first: bool, last: bool) -> None:
        """Enter a part of the connector's list of all its chunks. It is trusted for chunks whose state is unknown: chunks
        that the complete list does not name are absent."""
        if self.lost is None:
            return
        if first:
            self._listed = set()
        self.stored(keys)
        if last and self._listed is not None:
            self._held = self._listed
            self._absent.clear()
            self.lost = self._listed = None

    def mark_gap(self, why: Unknown) -> None:
        """Forget all keys: chunks may have been stored or evicted unobserved, or there are too many."""
        self._held.clear()
        self._absent.clear()
        self.lost, self._listed = why, None
