"""What a call was answered, as data that can be compared; and the events that would have been recorded of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from msgspec.structs import fields

from kvtrail.connector.known.probe import Evicted, Planned, Probe, Seen
from kvtrail.tracer.model.events import Event, Evict, LoadPlan, Plan, StorePlan

Answer = dict[str, Any]
_COMMON = [f.name for f in fields(Event)]
_numbers = count()


def raised(error: str | None) -> Answer:
    """The part of an answer that is an error."""
    return {} if error is None else {"error": error}


def same(recorded: Answer, now: Answer) -> bool:
    """Whether two answers are the same. Of two errors the class and the numbers count: versions word them differently."""
    if ("error" in recorded) is not ("error" in now):
        return False
    return _signature(recorded["error"]) == _signature(now["error"]) if "error" in recorded else recorded == now


def plans(events: Iterable[Event]) -> list[Answer]:
    """What workers are told to copy, from events; of each what is known."""
    told = [event for event in events if isinstance(event, Plan)]
    return [
        {
            "what": "store" if isinstance(event, StorePlan) else "load",
            "request": event.request,
            "start": event.start,
            "count": event.count,
            "blocks": event.blocks_ids,
            "keys": event.chunk_keys,
            "present": getattr(event, "chunk_present", None),
        }
        for event in told
    ]


def evicted(events: Iterable[Event]) -> list[str]:
    """The keys of the chunks that were evicted, sorted: within a step their order says nothing."""
    return sorted(str(event.chunk_key) for event in events if isinstance(event, Evict))


def held(events: Sequence[Event]) -> tuple[list[str], list[tuple[str | None, int | None, int]]]:
    """What a step's plan changes in the store: the chunks that leave it, and the tokens that enter it."""
    stored = [(e.request, e.start, e.count) for e in events if isinstance(e, StorePlan) and not e.chunk_present]
    return evicted(events), sorted(stored, key=repr)


def planned(probe: Probe, connector: Any, metadata: Any, recorded: Sequence[Event]) -> list[Event]:
    """The events of a step's plan and evictions, as the recorder would have told them, in its order."""
    like = recorded[-1]
    epochs = {event.request: event.epoch for event in recorded if event.request}
    seen = probe.stepped(connector, metadata) or Seen()
    loads = [LoadPlan(**_plan(plan, like, epochs)) for plan in seen.loads]
    stores = [StorePlan(**_plan(plan, like, epochs), chunk_present=plan.present) for plan in seen.stores]
    return [*loads, *(_evict(each, like) for each in seen.evicted), *stores]


def _signature(error: str) -> tuple[str, list[str]]:
    name, _, text = error.partition(":")
    return name, re.findall(r"\d+", text)


def _like(event: Event, request: str | None, epoch: int) -> dict[str, Any]:
    """What a new event has in common with a recorded one of the same step."""
    common = {name: getattr(event, name) for name in _COMMON}
    return {**common, "request": request, "epoch": epoch, "error": None, "span_id": f"again-{next(_numbers)}"}


def _plan(plan: Planned, like: Event, epochs: dict[str, int]) -> dict[str, Any]:
    """What the event of a plan says, to load or to store."""
    return _like(like, plan.request_id, epochs.get(plan.request_id, 0)) | {
        "start": plan.start,
        "count": plan.tokens,
        "blocks_ids": plan.blocks,
        "chunk_keys": plan.keys,
        "transfer_id": plan.job,
    }


def _evict(evicted: Evicted, like: Event) -> Event:
    return Evict(**_like(like, None, 0), chunk_key=evicted.key, count=evicted.tokens, bytes=evicted.bytes)
