"""Reading the fingerprints of blocks, and what becomes due when they are there.

On a CPU they are there at once. On a GPU they are queued behind the engine's work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvtrail.connector.fingerprints.plan import Check, blocks_of
from kvtrail.connector.fingerprints.references import BlockFingerprint
from kvtrail.connector.fingerprints.slim import Array, SlimFingerprints, SlimReading, together

FullValues = Mapping[int, tuple[int, Sequence[int]]]
"""By block the full fingerprint of all layers, and those of each layer."""
SlimValues = tuple[Array, Array]
"""The hashes of blocks, and their slim fingerprints, in the order of the checks."""
Values = tuple[FullValues, SlimValues | None]
MAX_BATCHED = 64
"""Computed blocks that wait to be judged together."""


class _Reading:
    """Both kinds of fingerprints of the same checks, on their way."""

    def __init__(self, full: Any, slim: tuple[Array, SlimReading] | None) -> None:
        """`slim`: the hashes, and the reading."""
        self._full, self._slim = full, slim

    def is_ready(self) -> bool:
        return (self._full is None or self._full.is_ready()) and (self._slim is None or self._slim[1].is_ready())

    def values(self) -> Values:
        full = {} if self._full is None else self._full.values()
        return full, None if self._slim is None else (self._slim[0], self._slim[1].values())


class _SlimBatch:
    """Slim fingerprints of blocks of several steps, on their way.

    Attributes:
        checks: in the order of the steps.
        blocks: how many.
    """

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self.blocks = 0
        self._hashes: list[int] = []
        self._readings: list[SlimReading] = []

    def add(self, fingerprints: SlimFingerprints, checks: Sequence[Check]) -> None:
        blocks = [block for check in checks for block in check.blocks]
        hashes = [hash_ for check in checks for hash_ in check.hashes]
        self._readings.append(fingerprints.read(blocks, np.array(hashes, dtype=np.uint64)))
        self._hashes += hashes
        self.checks += checks
        self.blocks += len(blocks)

    def is_ready(self) -> bool:
        return all(each.is_ready() for each in self._readings)

    def values(self) -> Values:
        return {}, (np.array(self._hashes, dtype=np.uint64), together(self._readings))


class Readings:
    """Reads blocks of one rank. Whatever is done with what is read is done in the order of the calls."""

    def __init__(
        self,
        full: Mapping[int, Any],
        slim: Mapping[int, SlimFingerprints],
        *,
        below: int,
        on_batch: Callable[[Sequence[Check], Values], None],
    ) -> None:
        """
        Args:
            full: `FullFingerprints` by the number of the KV cache group.
            slim: those with slim fingerprints, likewise; may be empty.
            below: blocks with hashes below this are sampled: they are read in full.
            on_batch: is called with batched checks and what was read of them.
        """
        self._full, self._slim, self._below, self._on_batch = full, slim, below, on_batch
        self._queue: deque[tuple[Any, Callable[[Any], None]]] = deque()
        """What is being read, if anything, and what is called with it."""
        self._batches: dict[int, _SlimBatch] = {}
        """Slim fingerprints of computed blocks, by group: judged together, for what that costs a step."""
        self._after_batches: list[Callable[[], None]] = []

    @property
    def is_busy(self) -> bool:
        """Whether something is queued."""
        return bool(self._queue)

    def sampled(self, check: Check) -> Check:
        """The check of those blocks that are read in full."""
        return check.only([hash_ < self._below for hash_ in check.hashes])

    def read(
        self, checks: Sequence[Check], then: Callable[[Sequence[Check], Values], None], *, but_partial: bool = False
    ) -> None:
        """Read the blocks of these checks: `then` is called with the checks of each group. `but_partial`: of a block with a
        computed last token, not all bytes are those that were loaded."""
        if any(check.blocks for check in checks):
            self.end_batches()
        for group, fingerprints in self._full.items():
            these = [check for check in checks if check.group == group and check.blocks]
            if not these:
                continue
            whole = [check.only([not but_partial or n != check.partial for n in check.numbers]) for check in these]
            blocks = blocks_of(map(self.sampled, whole))
            slim = None
            if group in self._slim:
                hashes = np.array([hash_ for check in these for hash_ in check.hashes], dtype=np.uint64)
                slim = hashes, self._slim[group].read([block for check in these for block in check.blocks], hashes)
            self._call_with(_Reading(fingerprints.read(blocks) if blocks else None, slim), these, then)

    def read_full(self, checks: Sequence[Check], then: Callable[[Sequence[Check], Values], None]) -> None:
        """Read the sampled blocks of these checks, in full alone."""
        if checks:
            self.end_batches()
        for group, fingerprints in self._full.items():
            these = [each for check in checks if check.group == group and (each := self.sampled(check)).blocks]
            if these:
                self._call_with(_Reading(fingerprints.read(blocks_of(these)), None), these, then)

    def enqueue(self, full: Any, checks: Sequence[Check], then: Callable[[Sequence[Check], Values], None]) -> None:
        """The same of full fingerprints that were read elsewhere."""
        self._call_with(_Reading(full, None), checks, then)

    def can_batch(self, checks: Sequence[Check]) -> bool:
        """Whether these checks need slim fingerprints alone, and none of a block that was loaded but for its last token."""
        return all(
            check.group in self._slim
            and check.partial not in check.numbers
            and not any(hash_ < self._below for hash_ in check.hashes)
            for check in checks
        )

    def read_batched(self, checks: Sequence[Check]) -> None:
        """Read blocks that were just computed, to be judged with those of other steps, before anything else is judged."""
        for group, slim in self._slim.items():
            these = [check for check in checks if check.group == group and check.blocks]
            if these:
                batch = self._batches.setdefault(group, _SlimBatch())
                batch.add(slim, these)
                if batch.blocks >= MAX_BATCHED:
                    self.end_batches()

    def end_batches(self) -> None:
        """What is batched is next."""
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            self._call_with(batch, batch.checks, self._on_batch)
        if self._after_batches:
            calls, self._after_batches = self._after_batches, []
            for call in calls:
                self.call(call)

    def call(self, then: Callable[[], None]) -> None:
        """Call this after what is queued."""
        self._queue.append((None, lambda _: then()))

    def call_after_batches(self, then: Callable[[], None]) -> None:
        """Call this after what is batched."""
        if self._batches:
            self._after_batches.append(then)
        else:
            then()

    def settle(self, *, wait: bool = False) -> None:
        """Go on with what is there; of a GPU, without a wait unless it must be."""
        while self._queue and (wait or self._queue[0][0] is None or self._queue[0][0].is_ready()):
            reading, then = self._queue.popleft()
            then(None if reading is None else reading.values())

    def _call_with(
        self, reading: Any, checks: Sequence[Check], then: Callable[[Sequence[Check], Values], None]
    ) -> None:
        self._queue.append((reading, lambda values: then(checks, values)))


def fingerprints_in(
    check: Check, full: FullValues, but_partial: bool, slim: Sequence[int] | None
) -> list[BlockFingerprint]:
    """The blocks of a check with their fingerprints."""
    unread: tuple[int | None, Sequence[int]] = (None, ())
    return [
        BlockFingerprint(
            number,
            block,
            hash_,
            *(unread if but_partial and number == check.partial else full.get(block, unread)),
            None if slim is None else slim[n],
        )
        for n, (number, block, hash_) in enumerate(zip(check.numbers, check.blocks, check.hashes, strict=True))
    ]
