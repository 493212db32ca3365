"""Chains of block hashes: a prompt's hashes are told once in an engine, and requests that share them refer to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtrail.tracer.model.events import Lookup, RequestEnd, RequestStart
from kvtrail.tracer.model.semconv import HASH_BYTES, MOST_TOLD

_ROOT = b""
"""What comes before the first block of all chains."""
Telling = RequestStart | Lookup | RequestEnd
"""The events that tell hashes of a request's blocks."""


def split_hashes(hashes: bytes | None) -> list[bytes]:
    """Recorded hashes, one for each block; none for None."""
    whole = 0 if hashes is None else len(hashes) // HASH_BYTES
    return [] if hashes is None else [hashes[n * HASH_BYTES : (n + 1) * HASH_BYTES] for n in range(whole)]


@dataclass(slots=True)
class Chain:
    """The hashes of a request's full blocks, as far as they are known.

    Attributes:
        first: number of the block that the first of them is of; those before it are unknown.
        hashes: of this block and the following ones, without a hole.
    """

    first: int = 0
    hashes: list[bytes] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Number of the block after the last one that is known."""
        return self.first + len(self.hashes)

    @property
    def is_whole(self) -> bool:
        """Whether it is known from the request's first block on."""
        return self.first == 0 and bool(self.hashes)

    def of(self, block: int) -> bytes | None:
        """The hash of a block; None where it is unknown."""
        return self.hashes[block - self.first] if self.first <= block < self.end else None


class Chains:
    """What is before each block, by hash, as one engine has told it.

    It remembers as many hashes as recorders refer to, and at most twice as many. What was lost or forgotten is unknown:
    nothing is made up in its place.
    """

    def __init__(self, most: int = MOST_TOLD) -> None:
        self._most = most
        self._before: dict[bytes, bytes] = {}
        self._before_that: dict[bytes, bytes] = {}
        """Older ones, forgotten as soon as there are as many newer ones as may be."""

    def add(self, chain: Chain, event: Telling) -> None:
        """Add to a request's chain what one of its events tells; its start begins it anew. What follows a hole is left
        out."""
        told, first = split_hashes(event.block_hashes), event.block_first or 0
        after = event.block_after if isinstance(event, RequestStart) else None
        if isinstance(event, RequestStart):
            chain.first, chain.hashes = 0, []
        if not told and not after:
            return
        before = _ROOT if first == 0 else after or chain.of(first - 1) or (self._of(told[0]) if told else None)
        if not chain.hashes:
            chain.hashes = list(self._up_to(before, first))[::-1]
            chain.first = first - len(chain.hashes)
        for each in told:
            if before is not None:
                self._remember(each, before)
            before = each
        if first <= chain.end:
            chain.hashes[max(0, first - chain.first) :] = told

    def _up_to(self, block: bytes | None, count: int) -> Iterator[bytes]:
        """A block's hash and those before it, `count` in all; as many as are known. No more than are remembered: what was
        told may go in a circle."""
        count = min(count, 2 * self._most)
        while count and block:
            yield block
            block, count = self._of(block), count - 1

    def _of(self, block: bytes) -> bytes | None:
        """The hash before this one; None if it is not known."""
        before = self._before.get(block)
        return self._before_that.get(block) if before is None else before

    def _remember(self, block: bytes, before: bytes) -> None:
        if len(self._before) >= self._most:
            self._before, self._before_that = {}, self._before
        self._before[block] = before
