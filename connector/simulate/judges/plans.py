"""Whether what a connector plans to load covers what it promised, as far as a probe tells its plans.

It follows each load from its allocation to the steps that run on it, plan by plan, which no account does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtrail.connector.simulate.judges.observer import Observation
from kvtrail.tracer.events.events import Alloc, Event, LoadPlan, Lookup, Preempt, RequestEnd, Schedule

PLANS = "plans"


@dataclass(slots=True)
class _Load:
    """Tokens [start, end) that a request was admitted with, and those that plans load since."""

    request: str
    start: int
    end: int
    planned: list[tuple[int, int]] = field(default_factory=list)
    ran: bool = False


def left_out(events: Iterable[Event], connector_id: str | None) -> Observation | None:
    """The first load with tokens that a plan leaves out; of one connector, or of all. A load that is not planned at all is
    none of its business: a plan may name no positions."""
    computed: dict[tuple[str, str | None], int] = {}
    loads: dict[str | None, dict[str, _Load]] = {}
    for event in events:
        mine = connector_id in (None, event.connector_id)
        if isinstance(event, Lookup) and mine:
            computed[event.connector_id, event.request] = event.computed
        elif isinstance(event, LoadPlan) and mine and event.start is not None:
            if (load := loads.get(event.request, {}).get(event.connector_id)) is not None:
                load.planned.append((event.start, event.start + event.count))
        elif isinstance(event, Alloc | Schedule | Preempt | RequestEnd):
            for load in loads.get(event.request, {}).values():
                # A step's plan is reported after the step.
                if load.ran and load.planned and (missing := _missing(load)):
                    return _observation(load, *missing)
                load.ran = load.ran or isinstance(event, Schedule)
            if isinstance(event, Preempt | RequestEnd):
                loads.pop(event.request, None)
            start = computed.get((event.connector_id, event.request))
            if isinstance(event, Alloc) and mine and event.allocated and event.error is None and start is not None:
                own = loads.setdefault(event.request, {})
                own[event.connector_id] = _Load(event.request or "", start, start + event.allocated)
    return None


def _missing(load: _Load) -> tuple[int, int] | None:
    """The first tokens of a load that no plan loads."""
    at = load.start
    for start, end in sorted(load.planned):
        if start > at:
            return at, min(start, load.end)
        at = max(at, end)
        if at >= load.end:
            return None
    return at, load.end


def _observation(load: _Load, start: int, end: int) -> Observation:
    planned = ", ".join(f"{first} to {last}" for first, last in sorted(load.planned))
    return Observation(
        PLANS,
        "a load leaves out tokens that were promised",
        f"{load.request} was admitted with tokens {load.start} to {load.end} to be loaded. The connector planned {planned},"
        f" so tokens {start} to {end} are loaded by nobody, and the request ran on them.",
    )
