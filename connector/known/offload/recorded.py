"""The OffloadConnector. Its own planning fills the store again. The recorded budget in bytes is converted, since the recorded
model's chunks had another size."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.recorded import RecordedStore
from kvtrail.connector.offload.config import DEFAULT_CHUNK_SIZE, DEFAULT_HOST_BYTES
from kvtrail.tracer.events.events import Evict

PLENTY = 1 << 16
"""The capacity in chunks if nothing was evicted."""


def as_recorded(store: RecordedStore) -> dict[str, Any]:
    """The recorded chunk size, and the recorded capacity in chunks."""
    chunk_size, slots = store.chunk_size or DEFAULT_CHUNK_SIZE, PLENTY
    sizes = [event.bytes for event in store.events if isinstance(event, Evict) and event.bytes]
    if sizes and store.same_connector:
        slots = min(slots, store.settings.get("cpu_bytes_to_use", DEFAULT_HOST_BYTES) // sizes[0])
    return {"chunk_size": chunk_size, "cpu_bytes_to_use": slots * (chunk_size // store.block_size) * store.block_bytes}


RECORDED = as_recorded
