"""Chains of block hashes: a prompt's hashes are reported once in an engine, and requests that share them refer to them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack_from

from msgspec import Struct

from kvtrail.tracer.events.events import Lookup, RequestEnd, RequestStart
from kvtrail.tracer.events.semconv import HASH_BYTES, MAX_REPORTED

_ROOT = b""
"""Stands for the predecessor of the first block of every chain."""
Telling = RequestStart | Lookup | RequestEnd
"""The events that report hashes of a request's blocks."""
_ONE = f"{HASH_BYTES}s"


def split_hashes(hashes: bytes | None) -> list[bytes]:
    """Recorded hashes, one for each block; none for None."""
    return [] if hashes is None else list(unpack_from(_ONE * (len(hashes) // HASH_BYTES), hashes))


class Chain(Struct):
    """The known hashes of a request's full blocks.

    Attributes:
        first: the number of the block to which the first hash belongs; the hashes of earlier blocks are unknown.
        hashes: the hashes of this block and the following ones, without a gap.
    """

    first: int = 0
    hashes: list[bytes] = []

    @property
    def end(self) -> int:
        """Number of the block after the last one that is known."""
        return self.first + len(self.hashes)

    @property
    def is_whole(self) -> bool:
        """Whether the chain is known from the request's first block on."""
        return self.first == 0 and bool(self.hashes)

    def extend(self, first: int, reported: Sequence[bytes]) -> None:
        """Add the hashes of a block and the following ones, replacing known ones. Hashes after a gap are not added."""
        if reported and first <= self.end:
            self.hashes[max(0, first - self.first) :] = reported

    def of(self, block: int) -> bytes | None:
        """The hash of a block; None where it is unknown."""
        return self.hashes[block - self.first] if self.first <= block < self.end else None


class _Run(Struct, gc=False):
    """Consecutive blocks that were reported together.

    Attributes:
        before: the block before the first of them.
    """

    before: bytes
    hashes: list[bytes]


class Chains:
    """The predecessor of each block, as one engine reported it.

    It remembers at least as many hashes as recorders refer to, and at most twice as many. Lost or forgotten hashes are
    unknown; nothing replaces them.
    """

    def __init__(self, most: int = MAX_REPORTED) -> None:
        self._most = most
        self._runs: dict[bytes, _Run] = {}
        """The recent runs, by each of their blocks."""
        self._older: dict[bytes, _Run] = {}
        """The older runs. They are forgotten as soon as the newer ones reach their limit."""

    def add(self, chain: Chain, event: Telling) -> None:
        """Add the hashes that an event reports to its request's chain. A start event begins the chain again. Hashes after a
        gap are left out."""
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
        """The last `count` hashes up to this block's, or fewer if fewer are known or remembered. The reported blocks may form
        a cycle."""
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
        """The hash before this one; None if unknown."""
        run = self._run(block)
        return None if run is None else (run.before, *run.hashes)[run.hashes.index(block)]

    def _run(self, block: bytes) -> _Run | None:
        return self._runs.get(block) or self._older.get(block)

    def _remember(self, run: _Run) -> None:
        if len(self._runs) + min(len(run.hashes), self._most) > self._most:
            self._runs, self._older = {}, self._runs
        self._runs.update(dict.fromkeys(run.hashes[-self._most :], run))
