"""What the offload did with its tokens, lookups, bytes and time, summed up as events come.

Pure, and bounded: what is kept of a request is what its next event needs, and what is summed goes into cells of a minute, an
engine, a connector and an epoch. It expects the events of a request in their order, each once; `detect` sees to that. What
a missing event leaves undecided is not counted at all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvtrail.tracer.detect.account import SCHEDULER, Account
from kvtrail.tracer.detect.prefill_speed import Steps
from kvtrail.tracer.model.events import Alloc, Event, Load, Lookup, Preempt, Received, RequestEnd, Schedule, Store
from kvtrail.tracer.model.semconv import Kind

MINUTE_S = 60
MOST_OPEN = 100_000
"""Requests of which something is awaited; the longest untouched leaves first, and what it waited for is not counted."""
LAST_EPOCH = 3
"""Later epochs are counted with this one."""
MOST_TIERS = 8
"""Tiers told apart for each connector; the rest are `other`."""
TIER = "tier:"
"""Before a tier's name in a measure."""
UNNAMED, OTHER = "store", "other"
"""The tier of tokens whose source the connector does not tell, and of those with too many sources."""


class Cell(NamedTuple):
    """Where a number is added: the minute as Unix seconds, and whose it is."""

    at_s: int
    engine: str
    connector: str
    epoch: int
    measure: str


@dataclass(frozen=True, slots=True)
class Admission:
    """A lookup whose answer led to an allocation.

    Attributes:
        lookup: the last one before it.
        event: the first allocation after it; a second one follows an asynchronous load, and admits nothing new.
        is_alone: whether no other connector was asked in this epoch, which may have brought tokens too.
    """

    lookup: Lookup
    event: Alloc
    is_alone: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """The end of an asynchronous load, and how long its request waited for it since the allocation, in nanoseconds."""

    event: Received
    lasted_ns: int


@dataclass(slots=True)
class _Asked:
    """A lookup of a request's epoch, and the allocation that took its answer, until the request runs."""

    lookup: Lookup
    postponed_ns: int | None = None
    """When the connector first said 'ask me later'."""
    alloc: Alloc | None = None


@dataclass(slots=True)
class Efficiency:
    """Sums of what was heard and not taken yet, and what of it is told one by one."""

    cells: Counter[Cell] = field(default_factory=Counter)
    facts: list[Admission | Wait] = field(default_factory=list)
    _open: OrderedDict[tuple[str, str], dict[str, _Asked]] = field(default_factory=OrderedDict)
    _tiers: dict[str, set[str]] = field(default_factory=dict)
    _steps: Steps = field(default_factory=Steps)

    def hear(self, event: Event, account: Account) -> None:
        """Enter one event, after its request's account took it."""
        if enter := _ENTER.get(event.kind):
            enter(self, event, account)

    def recall(self, event: Event, account: Account) -> None:
        """Enter one event of which the sums were taken before: only what follows needs it."""
        cells, facts = self.cells, self.facts
        self.cells, self.facts = Counter(), []
        self.hear(event, account)
        self.cells, self.facts = cells, facts

    def _add(self, event: Event, measure: str, value: int = 1, *, epoch: int | None = None) -> None:
        if value:
            at_s = event.end_ns // 10**9 // MINUTE_S * MINUTE_S
            epoch = min(event.epoch if epoch is None else epoch, LAST_EPOCH)
            self.cells[Cell(at_s, event.engine, event.connector, epoch, measure)] += value

    def _asked(self, event: Event) -> dict[str, _Asked]:
        """What was asked about the event's request in its epoch, by connector."""
        held = self._open.setdefault((event.engine, event.request or ""), {})
        self._open.move_to_end((event.engine, event.request or ""))
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        for connector_id in [c for c, asked in held.items() if asked.lookup.epoch != event.epoch]:
            del held[connector_id]
        return held

    def _enter_lookup(self, event: Lookup, account: Account) -> None:
        held = self._asked(event)
        before = held.get(event.connector_id)
        postponed_ns = None
        if before is not None and before.alloc is None:
            postponed_ns = before.postponed_ns
            if account.complete:
                self._wasted(before.lookup)
        self._add(event, "lookups")
        self._add(event, "lookup_ns", max(0, event.end_ns - event.start_ns))
        if event.error is not None:
            held.pop(event.connector_id, None)
            return
        if event.returned is None:
            self._add(event, "lookups_postponed")
            postponed_ns = postponed_ns or event.end_ns
        elif postponed_ns is not None:
            self._add(event, "postponed_ns", max(0, event.end_ns - postponed_ns))
            postponed_ns = None
        held[event.connector_id] = _Asked(event, postponed_ns)

    def _wasted(self, lookup: Lookup) -> None:
        if lookup.returned is not None and lookup.returned > 0:
            self._add(lookup, "lookups_unused")
            self._add(lookup, "unused", lookup.returned)

    def _enter_alloc(self, event: Alloc, account: Account) -> None:
        held = self._asked(event)
        asked = held.get(event.connector_id)
        if asked is None or asked.alloc is not None or event.error is not None:
            return  # the second allocation after an asynchronous load answers no lookup
        asked.alloc = event
        lookup = asked.lookup
        self.facts.append(Admission(lookup, event, is_alone=len(held) == 1))
        self._add(event, "admissions")
        self._add(event, "asked", lookup.total)
        self._add(event, "local", min(lookup.computed, lookup.total))
        self._add(event, "taken", event.allocated)
        if not event.allocated and account.complete:
            self._wasted(lookup)
        left = event.allocated
        for source in event.hit_sources or ():
            tier, _, tokens = source.rpartition(":")
            if tokens.isdecimal() and (count := min(left, int(tokens))):
                self._add(event, TIER + self._tier(event.connector, tier), count)
                left -= count
        self._add(event, TIER + UNNAMED, left)

    def _tier(self, connector: str, name: str) -> str:
        known = self._tiers.setdefault(connector, set())
        if name not in known and len(known) >= MOST_TIERS:
            return OTHER
        known.add(name)
        return name

    def _enter_received(self, event: Received, _: Account) -> None:
        asked = self._asked(event).get(event.connector_id)
        if asked is not None and asked.alloc is not None and asked.alloc.allocated and asked.lookup.is_async:
            waited_ns = max(0, event.end_ns - asked.alloc.end_ns)
            self.facts.append(Wait(event, waited_ns))
            self._add(event, "waits")
            self._add(event, "waited_ns", waited_ns)
            if event.failed:
                self._add(event, "failed", asked.alloc.allocated)

    def _enter_schedule(self, event: Schedule, account: Account) -> None:
        if (rate := self._steps.hear(event, account)) is not None:
            self._add(event, "prefill", rate.tokens, epoch=0)
            self._add(event, "prefill_ns", rate.took_ns, epoch=0)
        held = self._open.pop((event.engine, event.request or ""), {})
        for asked in held.values():
            if asked.alloc is None or asked.lookup.epoch != event.epoch:
                continue
            lookup = asked.lookup
            self._add(asked.alloc, "spared", min(asked.alloc.allocated, max(0, event.computed - lookup.computed)))
            if lookup.matched is None:
                self._add(asked.alloc, "admissions_hidden")
            else:  # the last token is always computed: its output is the next one
                self._add(asked.alloc, "recomputed", max(0, min(lookup.matched, lookup.total - 1) - event.computed))

    def _enter_preempt(self, event: Preempt, _: Account) -> None:
        self._add(event, "preemptions")

    def _enter_end(self, event: RequestEnd, account: Account) -> None:
        for asked in self._open.pop((event.engine, event.request or ""), {}).values():
            if asked.alloc is None and account.complete:
                self._wasted(asked.lookup)

    def _enter_load(self, event: Load, _: Account) -> None:
        self._copied(event, "load")

    def _enter_store(self, event: Store, _: Account) -> None:
        self._copied(event, "store")

    def _copied(self, event: Load | Store, way: str) -> None:
        if event.rank == 0:  # every rank copies its share of the same tokens
            self._add(event, f"{way}_tokens", event.count)
        if event.role == SCHEDULER:
            return  # of a log: a line has a moment, and no length
        took_ns = max(0, event.end_ns - event.start_ns)
        self._add(event, f"{way}_ns", took_ns)
        if event.bytes is not None:
            self._add(event, f"{way}_bytes", event.bytes)
            self._add(event, f"{way}_bytes_ns", took_ns)


_ENTER: dict[Kind, Callable[[Efficiency, Any, Account], None]] = {
    Kind.LOOKUP: Efficiency._enter_lookup,
    Kind.ALLOC: Efficiency._enter_alloc,
    Kind.RECEIVED: Efficiency._enter_received,
    Kind.SCHEDULE: Efficiency._enter_schedule,
    Kind.PREEMPT: Efficiency._enter_preempt,
    Kind.REQUEST: Efficiency._enter_end,
    Kind.LOAD: Efficiency._enter_load,
    Kind.STORE: Efficiency._enter_store,
}
