"""LMCache in vLLM's process, with the recorded chunk size and, at each lookup, the recorded number of tokens in the store."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.fake import SETTINGS
from kvtrail.connector.known.lmcache.fake import CHUNK_SIZE, MATCHED
from kvtrail.connector.known.recorded import RecordedStore


def as_recorded(store: RecordedStore) -> dict[str, Any]:
    """The settings from the recording. LMCache's own variables and its file, which usually configure it, are not recorded."""
    chunk_size = {} if store.chunk_size is None else {CHUNK_SIZE: store.chunk_size}
    return {**store.settings, **chunk_size, SETTINGS: {MATCHED: store.matched}}


RECORDED = as_recorded
