"""The reported state of one cache: the last event of each block or chunk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import islice

from msgspec import Struct

from kvtrail.tracer.causes.eviction_history import EvictionHistory
from kvtrail.tracer.model.causes import NotRecorded

MAX_KEYS = 200_000
"""Maximum number of a cache's keys that are remembered with their events; for older keys only the kind of event is kept."""
MAX_RESETS = 1_000
"""Maximum number of remembered resets of a cache."""
Key = bytes | str
"""A block's hash, which is also the key of the chunk that ends with it; or a connector's name of a chunk."""


class BlockState(IntEnum):
    """The last event of a block or chunk."""

    HELD = 1
    EVICTED = 2
    RESET = 3
    STORING = 4
    """Its store is open."""
    FULL = 5
    """It was not stored: the store was full."""
    FAILED = 6
    """It was not stored: the transfer failed."""
    ABSENT = 7
    """The cache does not hold it, and it is unknown whether it ever did."""
    UNSURE = 8
    """Nothing is known of it."""
    UNCACHED = 9
    """One of several KV cache groups never kept its blocks."""


LOST = (BlockState.EVICTED, BlockState.RESET)
UNSTORED = (BlockState.STORING, BlockState.FULL, BlockState.FAILED)
"""Events that do not show whether the cache held it before."""


class BlockChange(Struct, eq=False, gc=False):
    """An event's report about some keys. They share one object, so a run of blocks in the same state has one change.

    Attributes:
        number: its position among all facts.
        at_ns, span_id: the time and the event.
        by: the request that caused it.
        before: for a chunk that was not stored, its previous fact.
        group: the KV cache group, if there are several.
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
    """The reported state of a cache; with several KV cache groups, the contents of the first group.

    Attributes:
        name: the tier's name in the parts of a prompt.
        is_reported: whether its changes are reported.
        whole_from: the number from which no fact is missing; 0 from the beginning.
        why: why earlier facts are unknown.
        reports_changes: whether each change is reported, instead of a connector's plans and evictions.
        size: its contents then, in blocks or chunks.
        listed_at: the number of the latest change that listed all contents; 0 if there is none.
        others: the contents of the further KV cache groups.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_reported = False
        self.reports_changes = False
        self.size = self.listed_at = self.whole_from = 0
        self.why = NotRecorded.LATE
        self.others: list[CacheModel] = []
        self._cleared: list[BlockChange] = []
        """The latest `MAX_RESETS` resets."""
        self._facts: dict[Key, BlockChange] = {}
        """The last fact of each key, the oldest report first."""
        self._past = EvictionHistory()

    def group(self, number: int) -> CacheModel:
        """The contents of a KV cache group."""
        while len(self.others) < number:
            other = CacheModel(self.name)
            other.is_reported, other.whole_from, other.why = self.is_reported, self.whole_from, self.why
            other._cleared = self._cleared
            self.others.append(other)
        return self.others[number - 1] if number else self

    def record(self, keys: Iterable[Key], fact: BlockChange) -> None:
        """Enter a fact about these keys."""
        self.record_each(dict.fromkeys(keys, fact))

    def record_each(self, facts: Mapping[Key, BlockChange]) -> None:
        """Enter a fact about each of these keys."""
        for key in facts.keys() & self._facts.keys():
            del self._facts[key]
        self._facts.update(facts)
        if len(self._facts) > MAX_KEYS + MAX_KEYS // 8:
            self._forget(len(self._facts) - MAX_KEYS)

    def clear(self, fact: BlockChange) -> None:
        """Enter a reset of the cache."""
        self._cleared = [*self._cleared[1 - MAX_RESETS :], fact]
        for other in self.others:
            other.clear(fact)

    def mark_gap(self, number: int, why: NotRecorded) -> None:
        """Note that facts before this number may be missing."""
        self.whole_from, self.why = number, why
        for other in self.others:
            other.mark_gap(number, why)

    def last(self, key: Key) -> BlockChange | None:
        """The last reported fact of a key."""
        if (fact := self._facts.get(key)) is not None or not isinstance(key, bytes):
            return fact
        (code,) = self._past.codes((key,))
        return _FORGOTTEN[BlockState(code)] if code else None

    def states(self, keys: Sequence[bytes], is_fresh: Callable[[Key], bool]) -> list[BlockChange | None]:
        """The certain facts of each key; None: the cache never had it. `is_fresh` tells whether the block of a key was first
        named after the missing events."""
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
        """The current meaning of a fact."""
        if not self.is_reported:
            return fact
        if fact.number < self.whole_from:
            return self._unsure()
        cleared = self._cleared
        if fact.state is BlockState.HELD and cleared and cleared[-1].number > fact.number:  # by the first one after it
            return cleared[bisect_right(cleared, fact.number, key=lambda each: each.number)]
        return fact

    def _unsure(self) -> BlockChange:
        """The state of a key without a report since events were missed."""
        cleared = self._cleared[-1].number if self._cleared else -1
        return ABSENT if max(cleared, self.listed_at) >= self.whole_from else UNSURE

    def _forget(self, count: int) -> None:
        """Move the oldest keys to the eviction history."""
        oldest = [(key, self._facts.pop(key)) for key in list(islice(self._facts, count))]
        codes = {key: code for key, fact in oldest if isinstance(key, bytes) and (code := self._code(fact))}
        if codes:
            self._past.add(codes, codes.values())

    def _code(self, fact: BlockChange | None) -> int:
        """The code of a fact for the eviction history; 0 if none."""
        while fact is not None and (state := self.now(fact).state) not in _FORGOTTEN:
            fact = fact.before
        return 0 if fact is None else state
