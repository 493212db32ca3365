"""Which chunk lies in which slot of host memory: an LRU of fixed size, and nothing else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class ChunkIndex(Generic[Key]):
    """Chunk keys -> slots, least recently used first. Slots are numbered from 0."""

    def __init__(self, slots: int) -> None:
        self._slot: OrderedDict[Key, int] = OrderedDict()
        self._free = list(range(slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._slot)

    def __contains__(self, key: Key) -> bool:
        return key in self._slot

    def longest_prefix(self, keys: Iterable[Key]) -> int:
        """How many of the keys, from the first on, are held without a gap. Does not count as use."""
        held = 0
        for key in keys:
            if key not in self._slot:
                break
            held += 1
        return held

    def use(self, key: Key) -> int:
        """The slot of a chunk that is held, which becomes the most recently used."""
        self._slot.move_to_end(key)
        return self._slot[key]

    def add(self, key: Key) -> tuple[int, Key | None]:
        """A slot for a chunk that is not held, and the key of the chunk that had to leave it, if any."""
        assert key not in self._slot, "a chunk is stored once"
        evicted = None
        if self._free:
            slot = self._free.pop()
        else:
            evicted, slot = self._slot.popitem(last=False)
        self._slot[key] = slot
        return slot, evicted

    def clear(self) -> None:
        """Forget all chunks."""
        self._free.extend(self._slot.values())
        self._slot.clear()
