"""The OffloadConnector's store is an index of its own, which its own planning fills; what has to be found out is its size."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.environment import Environment
from kvtrail.connector.offload.config import DEFAULT_CHUNK_SIZE
from kvtrail.tracer.model.events import Event, Evict, Reset, StorePlan

PLENTY = 1 << 16
"""Chunks for which there is room where nothing shows how many there could be."""


class OffloadEnvironment(Environment):
    """The OffloadConnector, with a store of the recorded size where the recording shows it, else with plenty of room."""

    def settings(self) -> dict[str, Any]:
        """The recorded chunk size, and room for as many chunks as the recording shows that there was room for."""
        recorded = self.recorded
        chunk_size = recorded.chunk_size or DEFAULT_CHUNK_SIZE
        held, full = room(recorded.calls)
        slots = held if full and self.same_connector else PLENTY
        chunk_bytes = chunk_size // recorded.block_size * recorded.block_bytes
        return {"chunk_size": chunk_size, "cpu_bytes_to_use": slots * chunk_bytes}


def room(calls: tuple[tuple[Event, ...], ...]) -> tuple[int, bool]:
    """Chunks that the recorded store held at most, and whether it was full then: the first that is evicted makes room in
    one that is."""
    held = most = 0
    for call in calls:
        if isinstance(call[0], Reset):
            held = 0
        stored = sum(isinstance(e, StorePlan) and not e.chunk_present for e in call)
        evicted = sum(isinstance(e, Evict) for e in call)
        held += stored - evicted
        most = max(most, held)
        if evicted:
            return most, True
    return most, False


ENVIRONMENT = OffloadEnvironment
