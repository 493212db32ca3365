"""vLLM's native OffloadingConnector. Its own planning fills the store again. The recorded capacity is unknown."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.recorded import RecordedStore

ROOM = 1 << 30
"""Maximum number of bytes of host memory. A block of the replacement model has a few KiB."""


def as_recorded(store: RecordedStore) -> dict[str, Any]:
    """The recorded settings, with a budget that a small model can use up."""
    budget = store.settings.get("cpu_bytes_to_use", ROOM)
    if budget >= ROOM:
        store.notes.append("How many blocks the OffloadingConnector's store had room for is not recorded.")
    return {**store.settings, "cpu_bytes_to_use": min(budget, ROOM)}


RECORDED = as_recorded
