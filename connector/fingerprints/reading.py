"""Reads the fingerprints of blocks, and calls functions when they are available.

On a CPU they are available at once. On a GPU they are queued after the engine's work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvtrail.connector.fingerprints.plan import Check

if TYPE_CHECKING:
    from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints, Reading

Then = Callable[[Sequence[Check], Sequence[int]], None]
"""Called with checks of one group, and the fingerprints of all their blocks, in order."""
MAX_BATCHED = 64
"""Maximum number of computed blocks that wait to be judged together."""


class Readings:
    """Reads blocks of one rank. The results are processed in the order of the calls."""

    def __init__(self, fingerprints: Mapping[int, BlockFingerprints], *, on_batch: Then) -> None:
        """
        Args:
            fingerprints: by the number of the KV cache group.
            on_batch: called with the batched checks of a group.
        """
        self._fingerprints, self._on_batch = fingerprints, on_batch
        self._queue: deque[tuple[Sequence[Reading], Callable[[], None]]] = deque()
        """The current reads, each with the function to call afterwards."""
        self._batches: dict[int, tuple[list[Check], list[Reading]]] = {}
        """Computed blocks of several steps, by group: judging them together costs a step less."""
        self._after_batches: list[Callable[[], None]] = []

    @property
    def is_busy(self) -> bool:
        """Whether there are queued reads."""
        return bool(self._queue)

    def read(self, checks: Sequence[Check], then: Then) -> None:
        """Queue reads of the blocks of these checks. `then` gets the result for each KV cache group."""
        by_group = _by_group(check for check in checks if check.blocks)
        if by_group:
            self.end_batches()
        for group, own in by_group.items():
            self._append(group, own, [self._start(group, own)], then)

    def read_batched(self, checks: Sequence[Check]) -> None:
        """Read blocks that were just computed. They are judged together with those of other steps, before any other block."""
        for group, own in _by_group(checks).items():
            batched, readings = self._batches.setdefault(group, ([], []))
            batched += own
            readings.append(self._start(group, own))
            if sum(len(check.blocks) for check in batched) >= MAX_BATCHED:
                self.end_batches()

    def end_batches(self) -> None:
        """Judge the batched blocks next."""
        batches, self._batches = self._batches, {}
        for group, batch in batches.items():
            self._append(group, *batch, self._on_batch)
        calls, self._after_batches = self._after_batches, []
        for call in calls:
            self.call(call)

    def call(self, then: Callable[[], None]) -> None:
        """Call this after the queued reads."""
        self._queue.append(((), then))

    def call_after_batches(self, then: Callable[[], None]) -> None:
        """Call this after the batched checks."""
        if self._batches:
            self._after_batches.append(then)
        else:
            then()

    def run_ready(self, *, wait: bool = False) -> None:
        """Call, in order, the functions whose reads have ended. With `wait`, wait until all reads on the GPU have ended."""
        while self._queue and (wait or all(each.is_ready() for each in self._queue[0][0])):
            self._queue.popleft()[1]()

    def _start(self, group: int, checks: Sequence[Check]) -> Reading:
        blocks = [block for check in checks for block in check.blocks]
        return self._fingerprints[group].read(blocks, [each for check in checks for each in check.hashes])

    def _append(self, group: int, checks: Sequence[Check], readings: Sequence[Reading], then: Then) -> None:
        values = self._fingerprints[group].values
        self._queue.append((readings, lambda: then(checks, values(readings))))


def _by_group(checks: Iterable[Check]) -> dict[int, list[Check]]:
    groups: dict[int, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.group, []).append(check)
    return groups
