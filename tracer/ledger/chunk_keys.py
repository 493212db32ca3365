"""Which chunks a connector's store holds, key by key, as far as its events tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.model.findings import Unknown

MAX_KEYS = 100_000
"""Keys remembered as held, and as absent; beyond that, all of them are forgotten."""


@dataclass(slots=True)
class ChunkKeys:
    """What is known of the keys in one connector's store.

    Attributes:
        lost: why a key may be neither known to be held nor known to be absent; None while every key that is not held is
            absent.
        unnamed: whether the connector also stores chunks without naming their keys.
    """

    lost: Unknown | None = None
    unnamed: bool = False
    _held: set[str] = field(default_factory=set)
    _absent: set[str] = field(default_factory=set)
    _listed: set[str] | None = None
    """While the store lists its chunks: those it named, or stored since the list began."""

    def holds(self, key: str) -> bool | None:
        """Whether the store holds the chunk; None if that is not known."""
        if key in self._held:
            return True
        return False if not self.unnamed and (self.lost is None or key in self._absent) else None

    def holds_nothing_but(self, keys: Iterable[str]) -> bool:
        """Whether the store is known to hold none but these chunks."""
        return self.lost is None and not self.unnamed and self._held.issubset(keys)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of the keys that the store is known not to hold."""
        held = self._held
        if self.lost is not None or self.unnamed:
            return [key for key in keys if self.holds(key) is False]
        return [key for key in keys if key not in held]

    def unsure(self, keys: Sequence[str]) -> Unknown | None:
        """Why it is not known of some of the keys whether the store holds them; None if it is known of all."""
        if self.lost is None and not self.unnamed:
            return None
        if all(key in self._held for key in keys):
            return None
        return Unknown.UNNAMED if self.unnamed else self.lost

    def stored(self, keys: Sequence[str]) -> None:
        """The store holds these chunks from now on."""
        if len(self._held) >= MAX_KEYS:
            self.mark_gap(Unknown.MANY)
        self._held.update(keys)
        if self.lost is not None:
            self._absent.difference_update(keys)
            if self._listed is not None:
                self._listed.update(keys)

    def evicted(self, key: str) -> None:
        """The chunk has left the store."""
        self._held.discard(key)
        if self.lost is not None:
            if len(self._absent) >= MAX_KEYS:
                self._absent.clear()
            self._absent.add(key)
            if self._listed is not None:
                self._listed.discard(key)

    def cleared(self) -> None:
        """The store is empty."""
        self._held.clear()
        self._absent.clear()
        self.lost = self._listed = None

    def claimed(self, keys: Iterable[str]) -> None:
        """A lookup says that the store holds these chunks. It is believed of unknown chunks, so that
        the next claim can be judged; what it claimed too much of them before is not found."""
        if self.lost is not None:
            if len(self._held) >= MAX_KEYS:
                self.mark_gap(Unknown.MANY)
            self._held.update(key for key in keys if key not in self._absent)

    def listed(self, keys: Sequence[str], *, first: bool, last: bool) -> None:
        """A part of a list of all chunks that the store holds, as its connector says. It is believed where nothing better is
        known: what the whole list does not name is absent."""
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
        """Forget all keys: any chunk may have been stored or evicted unseen, or there are too many."""
        self._held.clear()
        self._absent.clear()
        self.lost, self._listed = why, None
