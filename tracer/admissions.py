"""What an admission was worth, and how long things took: read from a request's events while it is open.

It looks at the events in the order of their arrival and judges nothing; what came out of order or was lost is not
counted. Pure, like the accounts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from tracer.events import Alloc, Event, LoadPlan, Lookup, Plan, Preempt, Received, RequestEnd, TransferEnd
from tracer.semconv import Kind

MOST_OPEN = 100_000
"""Requests remembered; beyond them the one that was untouched for longest is forgotten."""
UNSPECIFIED = "external_unspecified"
"""vLLM's word for a source that the connector does not name."""
SOURCES = frozenset({"device", "host", "p2p", "disk", UNSPECIFIED})
"""vLLM's words for where cached tokens come from."""


_KINDS = {
    Kind.LOOKUP, Kind.ALLOC, Kind.RECEIVED, Kind.PREEMPT, Kind.LOAD_PLAN, Kind.STORE_PLAN, Kind.TRANSFER_END, Kind.REQUEST,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A lookup whose answer led to an allocation.

    Attributes:
        queried: tokens that vLLM did not hold, and for which the connector was asked.
        local: tokens that vLLM's own prefix cache held.
        recomputed: tokens that the connector's store held and that are computed all the same; None where the connector
            hides what it holds, or others were asked too and may have brought them.
    """

    queried: int
    local: int
    recomputed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The time that a request spent waiting for an asynchronous load, in nanoseconds."""

    lasted_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A numbered transfer of a plan, from its plan to its end, in nanoseconds; a load or a store."""

    is_load: bool
    lasted_ns: int


@dataclass(slots=True)
class _Open:
    """An open request: by connector the lookup that nothing was allocated for yet, and the load that is waited for."""

    lookups: dict[str, Lookup] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    loads: dict[str, Alloc] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)


class Admissions:
    """The open requests, at most `MOST_OPEN` of them."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str], _Open] = OrderedDict()

    def enter(self, event: Event) -> Admission | Wait | Transfer | None:
        """Enter one event; returns what it brought to its end."""
        if event.kind not in _KINDS or event.request is None:
            return None
        key = (event.engine, event.request)
        if isinstance(event, RequestEnd):
            # Transfers may outlast their request; waits and lookups do not.
            if (held := self._open.get(key)) is not None and not held.plans:
                del self._open[key]
            return None
        held = self._open.get(key)
        if held is None:
            held = self._open[key] = _Open()
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(key)
        return _enter(event, held)


def sources(event: Alloc) -> dict[str, int]:
    """Where the allocated external tokens come from, by the connector's own account, if that adds up."""
    told: dict[str, int] = {}
    for source in event.hit_sources or ():
        name, _, count = source.partition(":")
        if name in SOURCES and count.isdecimal():
            told[name] = told.get(name, 0) + int(count)
    return told if sum(told.values()) == event.allocated else {UNSPECIFIED: event.allocated}


def _enter(event: Event, held: _Open) -> Admission | Wait | Transfer | None:
    match event:
        case Lookup():
            held.lookups[event.connector_id] = event
            held.asked.add(event.connector_id)
        case Alloc() if event.error is None:
            return _allocated(event, held)
        case Received():
            if (alloc := held.loads.pop(event.connector_id, None)) is not None:
                return Wait(lasted_ns=max(0, event.end_ns - alloc.end_ns))
        case Preempt():
            held.lookups.clear()
            held.loads.clear()
        case Plan() if event.transfer_id is not None:
            held.plans[event.transfer_id] = event
        case TransferEnd():
            if (plan := held.plans.pop(event.transfer_id, None)) is not None:
                return Transfer(is_load=isinstance(plan, LoadPlan), lasted_ns=max(0, event.end_ns - plan.start_ns))
    return None


def _allocated(event: Alloc, held: _Open) -> Admission | None:
    """The first allocation after a lookup; a second one follows an asynchronous load, and admits nothing new."""
    lookup = held.lookups.pop(event.connector_id, None)
    if lookup is None or lookup.epoch != event.epoch:
        return None
    if event.allocated and lookup.is_async:
        held.loads[event.connector_id] = event
    recomputed = None
    if lookup.matched is not None and len(held.asked) == 1:
        # The last token is computed in any case: there are no logits without it.
        recomputed = max(0, min(lookup.matched, lookup.total - 1) - lookup.computed - event.allocated)
    return Admission(queried=max(0, lookup.total - lookup.computed), local=lookup.computed, recomputed=recomputed)
