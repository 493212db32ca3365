"""The OffloadConnector fills its index by its own planning. Its budget in bytes is of the recorded model, so the room in its
store is inferred from what was evicted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from kvtrail.connector.known.recorded import RecordedStore
from kvtrail.connector.offload.config import DEFAULT_CHUNK_SIZE
from kvtrail.tracer.events.events import Event, Evict, LoadError, Reset, StorePlan

PLENTY = 1 << 16
"""Chunks of room where the recording shows no limit."""


def as_recorded(store: RecordedStore) -> dict[str, Any]:
    """The recorded chunk size, and room for as many chunks as the recorded store had."""
    chunk_size = store.chunk_size or DEFAULT_CHUNK_SIZE
    held, full = room(store.events)
    slots = held if full and store.same_connector else PLENTY
    return {"chunk_size": chunk_size, "cpu_bytes_to_use": slots * (chunk_size // store.block_size) * store.block_bytes}


def room(events: Sequence[Event]) -> tuple[int, bool]:
    """The most chunks that the recorded store held, and whether it was full then: a full store is the first to evict, or to
    refuse a chunk. What one step changes is recorded at one time. After a failed load a chunk that leaves for no other is one
    that cannot be loaded."""
    held = most = 0
    has_failed = False
    changes = (event for event in events if isinstance(event, Reset | Evict | StorePlan | LoadError))
    for _, step in groupby(changes, lambda event: (isinstance(event, Reset), event.start_ns)):
        same_time = list(step)
        if isinstance(same_time[0], Reset):
            held = 0
            continue
        has_failed = has_failed or any(isinstance(event, LoadError) for event in same_time)
        stored = [event for event in same_time if isinstance(event, StorePlan) and not event.chunk_present]
        left = [event for event in same_time if isinstance(event, Evict)]
        held += sum(event.count > 0 for event in stored) - len(left)
        most = max(most, held)
        made_room = any(event.pushed_by is not None or not has_failed for event in left)
        if made_room or any(event.count == 0 for event in stored):
            return most, True
    return most, False


RECORDED = as_recorded
