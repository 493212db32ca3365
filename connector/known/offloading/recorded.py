"""vLLM's native OffloadingConnector: its scheduler's side knows what the store holds, so its own planning fills it. How much
room there was is not recorded."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.recorded import RecordedStore

ROOM = 1 << 30
"""Bytes of host memory at most; blocks of the model that stands in have a few KiB."""


def as_recorded(store: RecordedStore) -> dict[str, Any]:
    """The recorded settings, with a budget that a small model can use up."""
    budget = store.settings.get("cpu_bytes_to_use", ROOM)
    if budget >= ROOM:
        store.notes.append("How many blocks the OffloadingConnector's store had room for is not recorded.")
    return {**store.settings, "cpu_bytes_to_use": min(budget, ROOM)}


RECORDED = as_recorded
