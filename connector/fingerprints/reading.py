"""Reads the fingerprints of blocks, and calls functions when they are available.

On a CPU they are available at once. On a GPU they are queued after the engine's work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvtrail.connector.fingerprints.plan import Check

if TYPE_CHECKING:
    from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints, Reading

Then = Callable[[Sequence[Check], Sequence[int]], None]
"""Called with checks of one group, and the fingerprints of all their blocks, in order."""
MAX_BATCHED = 64
"""Maximum number of computed blocks that wait to be judged together."""


class _Batch:
    """Blocks of some checks of one group that are being read, of several steps perhaps.

    Attributes:
        checks: the checks in the order of the steps.
        blocks: number of blocks.
    """

    def __init__(self, fingerprints: BlockFingerprints) -> None:
        self._fingerprints = fingerprints
        self.checks: list[Check] = []
        self.blocks = 0
        self._readings: list[Reading] = []

    def add(self, checks: Sequence[Check]) -> None:
        blocks = [block for check in checks for block in check.blocks]
        self._readings.append(self._fingerprints.read(blocks, [each for check in checks for each in check.hashes]))
        self.checks += checks
        self.blocks += len(blocks)

    def is_ready(self) -> bool:
        return all(each.is_ready() for each in self._readings)

    def give(self, then: Then) -> None:
        then(self.checks, self._fingerprints.values(self._readings))


class Readings:
    """Reads blocks of one rank. Whatever is done with what is read is done in the order of the calls."""

    def __init__(self, fingerprints: Mapping[int, BlockFingerprints], *, on_batch: Then) -> None:
        """
        Args:
            fingerprints: by the number of the KV cache group.
            on_batch: called with batched checks.
        """
        self._fingerprints, self._on_batch = fingerprints, on_batch
        self._queue: deque[tuple[_Batch | None, Callable[[], None]]] = deque()
        """The current reads, and the functions to call afterwards."""
        self._batches: dict[int, _Batch] = {}
        """Computed blocks, by group: judged together, for what that costs a step."""
        self._after_batches: list[Callable[[], None]] = []

    @property
    def is_busy(self) -> bool:
        """Whether there are queued reads."""
        return bool(self._queue)

    def read(self, checks: Sequence[Check], then: Then) -> None:
        """Read the blocks of these checks: `then` is called with those of each group."""
        checks = [check for check in checks if check.blocks]
        if checks:
            self.end_batches()
        for group in {check.group: None for check in checks}:
            batch = _Batch(self._fingerprints[group])
            batch.add([check for check in checks if check.group == group])
            self._append(batch, then)

    def read_batched(self, checks: Sequence[Check]) -> None:
        """Read blocks that were just computed, to be judged with those of other steps, before anything else is judged."""
        for group in {check.group: None for check in checks}:
            batch = self._batches.get(group)
            if batch is None:
                batch = self._batches[group] = _Batch(self._fingerprints[group])
            batch.add([check for check in checks if check.group == group])
            if batch.blocks >= MAX_BATCHED:
                self.end_batches()

    def end_batches(self) -> None:
        """Judge the batched blocks next."""
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            self._append(batch, self._on_batch)
        if self._after_batches:
            calls, self._after_batches = self._after_batches, []
            for call in calls:
                self.call(call)

    def call(self, then: Callable[[], None]) -> None:
        """Call this after the queued reads."""
        self._queue.append((None, then))

    def call_after_batches(self, then: Callable[[], None]) -> None:
        """Call this after the batched checks."""
        if self._batches:
            self._after_batches.append(then)
        else:
            then()

    def run_ready(self, *, wait: bool = False) -> None:
        """Go on with what is there; of a GPU, without a wait unless it must be."""
        while self._queue and (wait or (batch := self._queue[0][0]) is None or batch.is_ready()):
            self._queue.popleft()[1]()

    def _append(self, batch: _Batch, then: Then) -> None:
        self._queue.append((batch, lambda: batch.give(then)))
