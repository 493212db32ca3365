"""LMCache in vLLM's process: chunks of the recorded size, and at each lookup as many tokens in the store as were recorded."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.fake import SETTINGS
from kvtrail.connector.known.lmcache.fake import CHUNK_SIZE, MATCHED
from kvtrail.connector.known.recorded import RecordedStore


def as_recorded(store: RecordedStore) -> dict[str, Any]:
    """LMCache is mostly configured by its own variables or its file, which no recording shows."""
    chunk_size = {} if store.chunk_size is None else {CHUNK_SIZE: store.chunk_size}
    return {**store.settings, **chunk_size, SETTINGS: {MATCHED: store.matched}}


RECORDED = as_recorded
