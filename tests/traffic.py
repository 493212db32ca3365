"""Made-up traffic of engines: requests that queue, wait, load, prefill, decode, are preempted and store.

The events are those of a recorder at level `detailed`. The caller chooses their times, so that a page can be watched while
they arrive.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kvtrail.tracer.events import events as e
from kvtrail.tracer.events.events import Event

MS = 1_000_000
BLOCK = 32


@dataclass
class Engine:
    """An engine with one recorder, which numbers its events.

    Attributes:
        events: how many it has recorded.
        numbers: how many of each request.
        begun: how many requests it has begun.
    """

    name: str
    seed: int = 0
    events: int = 0
    numbers: Counter[str] = field(default_factory=Counter)
    begun: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.name} {self.seed}")

    def request(self, begin_ns: int, *, name: str = "", is_stale: bool = False, is_open: bool = False) -> list[Event]:
        """A request that began then; `is_stale` gives it a preemption and the stale answer of LMCache #2158."""
        self.begun += 1
        request = f"{name or f'chat-{self.begun:04}'}-{self.random.getrandbits(32):08x}"
        return list(self._events_of(request, begin_ns, is_stale, is_open))

    def _events_of(self, request: str, at: int, is_stale: bool, is_open: bool) -> Iterator[Event]:
        dice = self.random
        total = dice.randrange(8, 40) * BLOCK
        epoch = 0

        def event(cls: type[Event], begin: int, end: int, role: str = "scheduler", **fields: Any) -> Event:
            made = cls(
                engine=self.name, recorder=f"recorder-of-{self.name}", sequence=self.events, connector="OffloadConnector",
                role=role, rank=0, start_ns=begin, end_ns=end, request=request, request_sequence=self.numbers[request],
                epoch=epoch, **fields,
            )  # fmt: skip
            self.events += 1
            self.numbers[request] += 1
            return made

        yield event(e.RequestStart, at, at, total=total)
        at += int(dice.expovariate(1 / 300) * MS)
        hit = 0 if is_stale else dice.choice((0, 0, total // BLOCK // 2 * BLOCK))
        is_async = bool(hit) and dice.random() < 0.5
        looked = at + int(dice.uniform(0.5, 25) * MS)
        yield event(e.Lookup, at, looked, total=total, computed=0, matched=hit, returned=hit, is_async=is_async)
        at = looked + MS
        yield event(e.Alloc, at, at + 10_000, total=total, allocated=hit)
        if is_async:
            at += int(dice.uniform(200, 1500) * MS)
            yield event(e.Received, at, at)
            at += 30 * MS
        yield from self._run(event, at, total, hit)
        at += int(total * 1.2 * MS)
        if is_stale or dice.random() < 0.12:
            yield event(e.Preempt, at, at)
            epoch = 1
            yield event(e.Lookup, at + MS, at + 2 * MS, total=total + 8, computed=0, matched=256, returned=256)
            at += int(dice.uniform(300, 1200) * MS)
            held = 256 + BLOCK if is_stale else 0
            cached = True if is_stale else None
            yield event(e.Lookup, at, at + MS, total=total + 8, computed=held, matched=256, returned=256, cached=cached)
            if is_stale:
                error = "AssertionError: Mismatch in tokens to load"
                yield event(e.Alloc, at + 2 * MS, at + 3 * MS, total=total, allocated=256, error=error)
                return
            yield event(e.Alloc, at + 2 * MS, at + 2 * MS, total=total, allocated=256)
            yield from self._run(event, at + 3 * MS, total + 8, 256)
            at += int(total * 0.5 * MS)
        if is_open:
            return
        at += int(dice.uniform(500, 4000) * MS)
        yield event(e.RequestEnd, at, at, total=total + 40, output=40, outcome="stopped")

    def _run(self, event: Any, at: int, total: int, hit: int) -> Iterator[Event]:
        steps = {"drafted": 0}
        yield event(e.Schedule, at, at, computed=hit, scheduled=total - hit, **steps)
        if hit:
            loaded = at + int(hit * 0.3 * MS)
            yield event(e.Load, at, loaded, role="worker", start=0, count=hit, expected=hit)
        done = at + int((total - hit) * 1.0 * MS)
        yield event(e.Store, done - 40 * MS, done, role="worker", start=hit, count=total - hit)
        yield event(e.Schedule, done, done, computed=total, scheduled=1, **steps)


class Recording:
    """What an engine records as time goes on.

    Attributes:
        from_ns: when its first request begins.
        every_ms: the mean time from one request to the next.
        stale_every: the number of requests per stale answer; 0 for none.
    """

    def __init__(self, engine: Engine, *, from_ns: int, every_ms: float = 400.0, stale_every: int = 0) -> None:
        self._engine, self._every_ms, self._stale_every = engine, every_ms, stale_every
        self._next_ns = from_ns
        self._ahead: list[Event] = []
        self._numbers = count()

    def until(self, to_ns: int) -> list[Event]:
        """The events since the last call that have happened by then, numbered in the order in which they happened."""
        engine = self._engine
        while self._next_ns < to_ns:
            is_stale = bool(self._stale_every) and engine.begun % self._stale_every == self._stale_every - 1
            self._ahead += engine.request(self._next_ns, is_stale=is_stale)
            self._next_ns += int(engine.random.expovariate(1 / self._every_ms) * MS)
        self._ahead.sort(key=lambda event: event.end_ns)
        happened = bisect_right(self._ahead, to_ns, key=lambda event: event.end_ns)
        events, self._ahead = self._ahead[:happened], self._ahead[happened:]
        for event in events:
            event.sequence = next(self._numbers)
        return events


def served(engine: Engine, *, from_ns: int, to_ns: int, every_ms: float = 400.0, stale_every: int = 0) -> list[Event]:
    """What an engine records in a stretch of time, without what would happen after it."""
    return Recording(engine, from_ns=from_ns, every_ms=every_ms, stale_every=stale_every).until(to_ns)
