"""The OffloadConnector fills its index by its own planning. Its budget in bytes is of the recorded model, whose chunks had
other sizes."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.recorded import RecordedStore
from kvtrail.connector.offload.config import DEFAULT_CHUNK_SIZE, DEFAULT_HOST_BYTES
from kvtrail.tracer.events.events import Evict

PLENTY = 1 << 16
"""Chunks of room where nothing was evicted."""


def as_recorded(store: RecordedStore) -> dict[str, Any]:
    """The recorded chunk size, and room for as many chunks as the recorded store had."""
    chunk_size, slots = store.chunk_size or DEFAULT_CHUNK_SIZE, PLENTY
    sizes = [event.bytes for event in store.events if isinstance(event, Evict) and event.bytes]
    if sizes and store.same_connector:
        slots = min(slots, store.settings.get("cpu_bytes_to_use", DEFAULT_HOST_BYTES) // sizes[0])
    return {"chunk_size": chunk_size, "cpu_bytes_to_use": slots * (chunk_size // store.block_size) * store.block_bytes}


RECORDED = as_recorded
