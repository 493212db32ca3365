"""What the events of a batch add to the sums of recent activity. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import fields

from kvtrail.tracer.events.events import CLASSES, Event
from kvtrail.tracer.store import ACTIVITY_S, Activity, Amounts

_STRETCH_NS = ACTIVITY_S * 10**9
_SOURCES = {"returned": "returned", "count_tokens": "count", "bytes": "bytes"}
"""Which field of an event each amount sums up."""
_HAVE = {
    amount: frozenset(kind for kind, cls in CLASSES.items() if source in {field.name for field in fields(cls)})
    for amount, source in _SOURCES.items()
}


def summed(events: Sequence[Event]) -> dict[Activity, Amounts]:
    """What these events did, by stretch of time, engine and kind."""
    counts = Counter([(event.end_ns // _STRETCH_NS, event.engine, event.kind) for event in events])
    amounts = {amount: Counter[tuple[int, str, str]]() for amount in _SOURCES}
    for amount, source in _SOURCES.items():
        kinds = _HAVE[amount]
        for event in events:
            if event.kind in kinds and (value := getattr(event, source)):
                amounts[amount][event.end_ns // _STRETCH_NS, event.engine, event.kind] += value
    return {
        Activity(stretch * ACTIVITY_S, engine, kind): Amounts(
            count, *(amounts[amount][stretch, engine, kind] for amount in _SOURCES)
        )
        for (stretch, engine, kind), count in counts.items()
    }
