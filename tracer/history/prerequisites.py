"""The prerequisites of an event: the events that must happen before it.

A part of a history must have no gaps: no allocation without a lookup, no epoch without the preemption that began it. The
rules detect many gaps; this module covers the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Alloc, Event, Flush, LoadPlan, Plan, TransferEnd
from kvtrail.tracer.events.semconv import ROOTS, Kind

_OF_EPOCH = {Kind.LOOKUP, Kind.ALLOC, Kind.SCHEDULE, Kind.LOAD_PLAN, Kind.STORE_PLAN}
"""Kinds that are prerequisites only of events in their own epoch."""
_STEP_OR_ALLOC = (Kind.SCHEDULE, Kind.ALLOC)
_OWN: dict[Kind, tuple[Kind, ...]] = {
    Kind.SCHEDULE: _STEP_OR_ALLOC,
    Kind.PREEMPT: _STEP_OR_ALLOC,
    Kind.STORE_PLAN: _STEP_OR_ALLOC,
    Kind.LOAD: (Kind.LOAD_PLAN, Kind.ALLOC),
    Kind.STORE: (Kind.STORE_PLAN, *_STEP_OR_ALLOC),
    Kind.LOAD_ERROR: (Kind.ALLOC,),
    Kind.RECEIVED: (Kind.ALLOC,),
    Kind.SENT: (Kind.REQUEST,),
    Kind.FREE: (Kind.REQUEST,),
    Kind.READ: (Kind.REQUEST,),
}
"""The prerequisites of each kind: the last event of the first existing kind in this list. For steps, it is the epoch's first
step, since only that is recorded at every level."""


@dataclass(slots=True)
class _Past:
    """The indexes of a request's events that may be prerequisites of later ones: by kind, by kind and connector, and plans
    by connector and transfer."""

    members: list[int] = field(default_factory=list)
    epoch: int = 0
    of_epoch: dict[Hashable, int] = field(default_factory=dict)
    lasting: dict[Hashable, int] = field(default_factory=dict)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.of_epoch.clear()

    def first(self, *keys: Hashable) -> int | None:
        """The event under the first existing key."""
        known = (self.of_epoch.get(key, self.lasting.get(key)) for key in keys)
        return next((index for index in known if index is not None), None)

    def note(self, index: int, event: Event) -> None:
        self.members.append(index)
        if event.kind in ROOTS:
            self.lasting[Kind.REQUEST] = index
        elif event.kind not in _OF_EPOCH:
            self.lasting[event.kind] = index
        elif event.kind is not Kind.SCHEDULE or Kind.SCHEDULE not in self.of_epoch:
            self.of_epoch[event.kind] = self.of_epoch[event.kind, event.connector_id] = index
        if isinstance(event, Plan) and event.transfer_id is not None:
            self.lasting[event.connector_id, event.transfer_id] = index


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
        if event.kind is Kind.REQUEST_START and Kind.REQUEST in past.lasting:
            endings.append(past)
            past = pasts[key] = _Past()
        needed.append(_prerequisites_of(index, event, past))
    for past in endings:
        end = past.lasting[Kind.REQUEST]
        for index in past.members:
            if index != end:
                needed[index] = (*needed[index], end)
    return needed


def _prerequisites_of(index: int, event: Event, past: _Past) -> tuple[int, ...]:
    """The event's prerequisites. Afterwards, it may be a prerequisite itself."""
    begins = event.epoch > past.epoch
    if begins and event.kind is not Kind.PREEMPT:  # the preemption was not recorded
        past.begin_epoch(event.epoch)
    needs = {past.first(Kind.REQUEST_START), _own(event, past)}
    if event.epoch >= past.epoch:  # a worker in another process does not know the epoch
        needs.add(past.first(Kind.PREEMPT))
    if begins and event.kind is Kind.PREEMPT:
        past.begin_epoch(event.epoch)
    past.note(index, event)
    return tuple(sorted(index for index in needs if index is not None))


def _own(event: Event, past: _Past) -> int | None:
    """The prerequisites of an event of this kind."""
    match event:
        case Alloc():
            return past.first((Kind.LOOKUP, event.connector_id))
        case LoadPlan():
            return past.first((Kind.ALLOC, event.connector_id), Kind.ALLOC)
        case TransferEnd() | Flush():
            return past.first((event.connector_id, event.transfer_id))
        case _:
            return past.first(*_OWN.get(event.kind, ()))
