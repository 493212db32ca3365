"""A store of chunks, in memory: which prefixes are held, and no KV."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class Chunks:
    """Chunks of `size` tokens, each known by all tokens up to its end. Nothing is ever evicted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: set[bytes] = set()

    def store(self, tokens: Sequence[int], start: int, end: int) -> None:
        """Hold the whole chunks of `tokens` in [start, end)."""
        self._held.update(self._key(tokens, each) for each in range(start + self.size, end + 1, self.size))

    def prefix(self, tokens: Sequence[int], start: int = 0) -> int:
        """End of the chunks that are held without a gap from `start` on, in tokens."""
        end = start
        while end + self.size <= len(tokens) and self._key(tokens, end + self.size) in self._held:
            end += self.size
        return end

    def clear(self) -> None:
        self._held.clear()

    @staticmethod
    def _key(tokens: Sequence[int], end: int) -> bytes:
        return array("i", tokens[:end]).tobytes()
