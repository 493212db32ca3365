"""The OffloadConnector: its own planning restores its index; what must be inferred is the size of its store."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.environment import Environment
from kvtrail.connector.offload.config import DEFAULT_CHUNK_SIZE
from kvtrail.tracer.events.events import Event, Evict, Reset, StorePlan

PLENTY = 1 << 16
"""Chunks of room where the recording shows no limit."""


class OffloadEnvironment(Environment):
    """The OffloadConnector, with the store size that the recording shows, else with plenty of room."""

    def settings(self) -> dict[str, Any]:
        """The recorded chunk size, and room for as many chunks as the recorded store had."""
        recorded = self.recorded
        chunk_size = recorded.chunk_size or DEFAULT_CHUNK_SIZE
        held, full = room(recorded.calls)
        slots = held if full and self.same_connector else PLENTY
        chunk_bytes = chunk_size // recorded.block_size * recorded.block_bytes
        return {"chunk_size": chunk_size, "cpu_bytes_to_use": slots * chunk_bytes}


def room(calls: tuple[tuple[Event, ...], ...]) -> tuple[int, bool]:
    """The most chunks that the recorded store held, and whether it was full then: a full store is the first to evict, or to
    refuse a chunk. `calls` are the events of each call."""
    held = most = 0
    for call in calls:
        if isinstance(call[0], Reset):
            held = 0
        stored = [e for e in call if isinstance(e, StorePlan) and not e.chunk_present]
        evicted = sum(isinstance(e, Evict) for e in call)
        held += sum(e.count > 0 for e in stored) - evicted
        most = max(most, held)
        if evicted or any(e.count == 0 for e in stored):
            return most, True
    return most, False


ENVIRONMENT = OffloadEnvironment
