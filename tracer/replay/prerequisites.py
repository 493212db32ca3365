"""The prerequisites of an event: the events without which it could not have happened.

A part of a history must have no holes: no allocation without a lookup, no epoch without the preemption that began it. The
rules notice many holes by themselves; this covers what they do not look at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.model.events import Event, Flush, Plan, TransferEnd
from kvtrail.tracer.model.semconv import Kind


@dataclass(slots=True)
class _Past:
    """The indexes of a request's events that may be prerequisites of later ones; those of an epoch are dropped with it."""

    members: list[int] = field(default_factory=list)
    start: int | None = None
    end: int | None = None
    preempt: int | None = None
    epoch: int = 0
    lookups: dict[str, int] = field(default_factory=dict)
    allocs: dict[str, int] = field(default_factory=dict)
    alloc: int | None = None
    step: int | None = None
    """The first of the epoch: the only one that is recorded at every level."""
    load: int | None = None
    store: int | None = None
    lock: int | None = None
    jobs: dict[tuple[str, int], int] = field(default_factory=dict)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.alloc = self.step = self.load = self.store = None
        self.lookups.clear()
        self.allocs.clear()


def prerequisites(events: Sequence[Event]) -> list[tuple[int, ...]]:
    """The direct prerequisites of each event, as indexes; only recorded events are named.

    | event | prerequisites |
    | --- | --- |
    | any of a request | the request's start; the preemption that began its epoch |
    | allocation | the last lookup of its connector in the epoch |
    | a step; a load or a failed one | the allocation; for a later step also the epoch's first |
    | preemption | a step of the epoch that it ends: only what runs is preempted |
    | plan | the allocation, for a load; the epoch's first step, for a store |
    | copy of a worker | its plan |
    | end of a transfer, flush | the plan with its number |
    | unlock | the lock before it: without one, a second unlock would look like a first |
    | anything after the end of a request | that end |

    If an id is used again, all events of the earlier request need its end, or the two would look like one request.
    """
    needed: list[tuple[int, ...]] = []
    pasts: dict[tuple[str, str], _Past] = {}
    endings: list[_Past] = []
    for index, event in enumerate(events):
        if event.request is None:
            needed.append(())
            continue
        key = (event.engine, event.request)
        past = pasts.setdefault(key, _Past())
        if event.kind is Kind.REQUEST_START and past.end is not None:
            endings.append(past)
            past = pasts[key] = _Past()
        needed.append(_prerequisites_of(index, event, past))
    for past in endings:
        assert past.end is not None
        for index in past.members:
            if index != past.end:
                needed[index] = (*needed[index], past.end)
    return needed


def _prerequisites_of(index: int, event: Event, past: _Past) -> tuple[int, ...]:
    """The event's prerequisites; from now on it may be one itself."""
    begins = event.epoch > past.epoch
    if begins and event.kind is not Kind.PREEMPT:  # the preemption was not recorded
        past.begin_epoch(event.epoch)
    needs = {past.start}
    if own := _OWN.get(event.kind):
        needs.add(own(event, past))
    if event.epoch >= past.epoch:  # a worker in another process does not know epochs
        needs.add(past.preempt)
    if begins and event.kind is Kind.PREEMPT:
        past.begin_epoch(event.epoch)
    past.members.append(index)
    _note(index, event, past)
    return tuple(sorted(index for index in needs if index is not None))


def _note(index: int, event: Event, past: _Past) -> None:
    match event.kind:
        case Kind.REQUEST_START:
            past.start = index
        case Kind.REQUEST:
            past.end = index
        case Kind.PREEMPT:
            past.preempt = index
        case Kind.LOOKUP:
            past.lookups[event.connector_id] = index
        case Kind.ALLOC:
            past.alloc = past.allocs[event.connector_id] = index
        case Kind.SCHEDULE if past.step is None:
            past.step = index
        case Kind.LOAD_PLAN:
            past.load = index
        case Kind.STORE_PLAN:
            past.store = index
        case Kind.LOCK:
            past.lock = index
    if isinstance(event, Plan) and event.transfer_id is not None:
        past.jobs[event.connector_id, event.transfer_id] = index


def _first(*known: int | None) -> int | None:
    return next((index for index in known if index is not None), None)


def _of_transfer(event: TransferEnd | Flush, past: _Past) -> int | None:
    return past.jobs.get((event.connector_id, event.transfer_id))


_OWN: dict[Kind, Callable[[Any, _Past], int | None]] = {
    Kind.ALLOC: lambda event, past: past.lookups.get(event.connector_id),
    Kind.SCHEDULE: lambda event, past: _first(past.step, past.alloc),
    Kind.PREEMPT: lambda event, past: _first(past.step, past.alloc),
    Kind.LOAD_PLAN: lambda event, past: _first(past.allocs.get(event.connector_id), past.alloc),
    Kind.STORE_PLAN: lambda event, past: _first(past.step, past.alloc),
    Kind.LOAD: lambda event, past: _first(past.load, past.alloc),
    Kind.STORE: lambda event, past: _first(past.store, past.step, past.alloc),
    Kind.LOAD_ERROR: lambda event, past: past.alloc,
    Kind.RECEIVED: lambda event, past: past.alloc,
    Kind.TRANSFER_END: _of_transfer,
    Kind.FLUSH: _of_transfer,
    Kind.UNLOCK: lambda event, past: past.lock,
    Kind.SENT: lambda event, past: past.end,
    Kind.FREE: lambda event, past: past.end,
    Kind.READ: lambda event, past: past.end,
}
