"""Chains of block hashes: a prompt's hashes are reported once in an engine, and requests that share them refer to them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack_from

from msgspec import Struct

from kvtrail.tracer.events.events import Lookup, RequestEnd, RequestStart
from kvtrail.tracer.events.semconv import HASH_BYTES, MAX_REPORTED

_ROOT = b""
"""What comes before the first block of all chains."""
Telling = RequestStart | Lookup | RequestEnd
"""The events that tell hashes of a request's blocks."""
_ONE = f"{HASH_BYTES}s"


def split_hashes(hashes: bytes | None) -> list[bytes]:
    """Recorded hashes, one for each block; none for None."""
    return [] if hashes is None else list(unpack_from(_ONE * (len(hashes) // HASH_BYTES), hashes))


class Chain(Struct):
    """The hashes of a request's full blocks, as far as they are known.

    Attributes:
        first: number of the block that the first of them is of; those before it are unknown.
        hashes: of this block and the following ones, without a hole.
    """

    first: int = 0
    hashes: list[bytes] = []

    @property
    def end(self) -> int:
        """Number of the block after the last one that is known."""
        return self.first + len(self.hashes)

    @property
    def is_whole(self) -> bool:
        """Whether it is known from the request's first block on."""
        return self.first == 0 and bool(self.hashes)

    def extend(self, first: int, reported: Sequence[bytes]) -> None:
        """Add the hashes of a block and the following ones, in place of those known of them; not behind a hole."""
        if reported and first <= self.end:
            self.hashes[max(0, first - self.first) :] = reported

    def of(self, block: int) -> bytes | None:
        """The hash of a block; None where it is unknown."""
        return self.hashes[block - self.first] if self.first <= block < self.end else None


class _Run(Struct, gc=False):
    """Blocks that were reported at once, each following the one before it.

    Attributes:
        before: the block before the first of them.
    """

    before: bytes
    hashes: list[bytes]


class Chains:
    """What is before each block, as one engine has reported it.

    It remembers as many hashes as recorders refer to, and at most twice as many. What was lost or forgotten is unknown:
    nothing is made up in its place.
    """

    def __init__(self, most: int = MAX_REPORTED) -> None:
        self._most = most
        self._runs: dict[bytes, _Run] = {}
        """By each of their blocks."""
        self._older: dict[bytes, _Run] = {}
        """Forgotten as soon as there are as many newer ones as may be."""

    def add(self, chain: Chain, event: Telling) -> None:
        """Add to a request's chain what one of its events reports; its start begins it again. What follows a hole is left
        out."""
        reported, first = split_hashes(event.block_hashes), event.block_first or 0
        after = event.block_after if isinstance(event, RequestStart) else None
        if isinstance(event, RequestStart):
            chain.first, chain.hashes = 0, []
        if not reported and not after:
            return
        before = (
            _ROOT if first == 0 else after or chain.of(first - 1) or (self._before(reported[0]) if reported else None)
        )
        if not chain.hashes:
            chain.hashes = self._up_to(before, first)
            chain.first = first - len(chain.hashes)
        if before is not None:
            self._remember(_Run(before, reported))
        elif len(reported) > 1:
            self._remember(_Run(reported[0], reported[1:]))
        chain.extend(first, reported)

    def _up_to(self, block: bytes | None, count: int) -> list[bytes]:
        """The hashes up to this block's, `count` in all; as many as are known, and no more than are remembered.
        What was reported may go in a circle."""
        count = min(count, 2 * self._most)
        parts: list[list[bytes]] = []
        while count and block:
            run = self._run(block)
            if run is None:
                parts.append([block])
                break
            end = run.hashes.index(block) + 1
            parts.append(run.hashes[max(0, end - count) : end])
            block, count = run.before, count - len(parts[-1])
        return [each for part in reversed(parts) for each in part]

    def _before(self, block: bytes) -> bytes | None:
        """The hash before this one; None if it is not known."""
        run = self._run(block)
        return None if run is None else (run.before, *run.hashes)[run.hashes.index(block)]

    def _run(self, block: bytes) -> _Run | None:
        return self._runs.get(block) or self._older.get(block)

    def _remember(self, run: _Run) -> None:
        if len(self._runs) + min(len(run.hashes), self._most) > self._most:
            self._runs, self._older = {}, self._runs
        self._runs.update(dict.fromkeys(run.hashes[-self._most :], run))
