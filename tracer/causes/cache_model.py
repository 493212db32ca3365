"""What was reported of one cache: of each block or chunk, what happened to it last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import islice

from msgspec import Struct

from kvtrail.tracer.causes.eviction_history import EvictionHistory
from kvtrail.tracer.model.causes import NotRecorded

MAX_KEYS = 200_000
"""Keys of a cache that are remembered with the events that reported them; of older ones only what happened to them."""
MAX_RESETS = 1_000
"""Times that a cache was emptied that are distinguished."""
Key = bytes | str
"""A block's hash, which is also the key of the chunk that it ends; or the name that a connector gives to a chunk."""


class BlockState(IntEnum):
    """What happened to a block, or to a chunk."""

    HELD = 1
    EVICTED = 2
    RESET = 3
    STORING = 4
    """Its store is under way."""
    FULL = 5
    """It was not stored: there was no room."""
    FAILED = 6
    """It was not stored: the transfer failed."""
    ABSENT = 7
    """The cache does not hold it, and whether it ever did is not known."""
    UNSURE = 8
    """Nothing is known of it."""
    UNCACHED = 9
    """One of several KV cache groups has never kept its part of it."""


LOST = (BlockState.EVICTED, BlockState.RESET)
UNSTORED = (BlockState.STORING, BlockState.FULL, BlockState.FAILED)
"""What says nothing of whether the cache had held it before."""


class BlockChange(Struct, eq=False, gc=False):
    """What an event reported of some keys. One object for all of them: a run of blocks in one state has one change.

    Attributes:
        number: its place among all facts.
        at_ns, span_id: when it happened, and the event.
        by: the request that did it.
        before: of a chunk that was not stored, what had happened to it earlier.
        group: of several KV cache groups, the one that the part is of.
    """

    state: BlockState
    number: int
    at_ns: int = 0
    span_id: str = ""
    by: str = ""
    before: BlockChange | None = None
    group: int | None = None


ABSENT, UNSURE = BlockChange(BlockState.ABSENT, 0), BlockChange(BlockState.UNSURE, 0)
_FORGOTTEN = {state: BlockChange(state, 0) for state in (BlockState.HELD, *LOST)}


class CacheModel:
    """A cache, as it was reported; with several KV cache groups, what the first of them keeps there.

    Attributes:
        name: the tier's, in the parts of a prompt.
        is_reported: whether what it gains and loses is reported.
        whole_from: the number from which on no fact is missing; 0 from the beginning.
        why: why what happened before is not known.
        reports_changes: whether it is reported change by change, and not by a connector's plans and evictions.
        size: what it holds then, in blocks or chunks.
        listed_at: the number of the change that listed all of them last.
        others: what the further KV cache groups keep there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_reported = False
        self.reports_changes = False
        self.size = self.listed_at = 0
        self.whole_from = 0
        self.why = NotRecorded.LATE
        self.others: list[CacheModel] = []
        self._cleared: list[BlockChange] = []
        """When it was emptied, the latest `MAX_RESETS` times."""
        self._listed = -1
        """The number of the latest change that listed all that the cache holds."""
        self._facts: dict[Key, BlockChange] = {}
        """What happened to each key last, those that were reported longest ago first."""
        self._past = EvictionHistory()

    def group(self, number: int) -> CacheModel:
        """What a KV cache group keeps there."""
        while len(self.others) < number:
            other = CacheModel(self.name)
            other.is_reported, other.whole_from, other.why = self.is_reported, self.whole_from, self.why
            other._cleared = self._cleared
            self.others.append(other)
        return self.others[number - 1] if number else self

    def record(self, keys: Iterable[Key], fact: BlockChange) -> None:
        """Something happened to these."""
        self.record_each(dict.fromkeys(keys, fact))

    def record_each(self, facts: Mapping[Key, BlockChange]) -> None:
        """Something happened to each of these."""
        for key in facts.keys() & self._facts.keys():
            del self._facts[key]
        self._facts.update(facts)
        if len(self._facts) > MAX_KEYS + MAX_KEYS // 8:
            self._forget(len(self._facts) - MAX_KEYS)

    def clear(self, fact: BlockChange) -> None:
        """The cache was emptied."""
        self._cleared = [*self._cleared[1 - MAX_RESETS :], fact]
        for other in self.others:
            other.clear(fact)

    def listed(self, keys: Sequence[Key], fact: BlockChange) -> None:
        """The cache holds these, and nothing else."""
        self._listed = fact.number
        self.record(keys, fact)

    def mark_gap(self, number: int, why: NotRecorded) -> None:
        """What happened before this number may not have been reported."""
        self.whole_from, self.why = number, why
        for other in self.others:
            other.mark_gap(number, why)

    def last(self, key: Key) -> BlockChange | None:
        """What was reported of a key last."""
        if (fact := self._facts.get(key)) is not None or not isinstance(key, bytes):
            return fact
        (code,) = self._past.codes((key,))
        return _FORGOTTEN[BlockState(code)] if code else None

    def states(self, keys: Sequence[bytes], is_fresh: Callable[[Key], bool]) -> list[BlockChange | None]:
        """What happened to each key, as far as that is certain; None: the cache never had it. `is_fresh` tells whether the
        block of a key was named for the first time after the missing events."""
        facts = list(map(self._facts.get, keys))
        if self._past:
            unseen = [n for n, fact in enumerate(facts) if fact is None]
            for n, code in zip(unseen, self._past.codes([keys[n] for n in unseen]), strict=True):
                if code:
                    facts[n] = _FORGOTTEN[BlockState(code)]
        if not self.whole_from and not self._cleared:
            return facts
        known: dict[int, BlockChange | None] = {}
        sure: list[BlockChange | None] = []
        for fact, key in zip(facts, keys, strict=True):
            if fact is None:
                sure.append(None if not self.whole_from or is_fresh(key) else self._unsure())
            else:
                if id(fact) not in known:
                    known[id(fact)] = self.now(fact)
                sure.append(known[id(fact)])
        return sure

    def now(self, fact: BlockChange) -> BlockChange:
        """What a fact means by now."""
        if not self.is_reported:
            return fact
        if fact.number < self.whole_from:
            return self._unsure()
        cleared = self._cleared
        if fact.state is BlockState.HELD and cleared and cleared[-1].number > fact.number:  # by the first one after it
            return cleared[bisect_right(cleared, fact.number, key=lambda each: each.number)]
        return fact

    def _unsure(self) -> BlockChange:
        """What is known of a key without a report since something was missed."""
        cleared = self._cleared[-1].number if self._cleared else -1
        return ABSENT if max(cleared, self._listed) >= self.whole_from else UNSURE

    def _forget(self, count: int) -> None:
        """Let the oldest keys go into the past."""
        oldest = [(key, self._facts.pop(key)) for key in list(islice(self._facts, count))]
        codes = {key: code for key, fact in oldest if isinstance(key, bytes) and (code := self._code(fact))}
        if codes:
            self._past.add(codes, codes.values())

    def _code(self, fact: BlockChange | None) -> int:
        """What the past remembers of a fact; 0 if nothing."""
        while fact is not None and (state := self.now(fact).state) not in _FORGOTTEN:
            fact = fact.before
        return 0 if fact is None else state
