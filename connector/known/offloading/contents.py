"""The contents of an OffloadingConnector's store in host memory, with several KV cache groups: the chunks of each group.

With one group, its plans and evictions have the same information, and also the reasons why a chunk was not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvtrail.connector.known.probe import StoreContents
from kvtrail.connector.known.watching import End, after, watch
from kvtrail.tracer.events.semconv import GROUP_BYTES, HASH_BYTES


class Contents(StoreContents):
    """Observes the calls of a manager."""

    tier = "cpu"
    changes_in_plans = True

    def __init__(self, manager: Any, chunks: Callable[[], Any]) -> None:
        """`chunks` returns all chunks of the store by key, whether complete or being written."""
        super().__init__()
        self._chunks = chunks
        after(manager, "prepare_store", self._on_prepared, self._failed)
        watch(manager, "complete_store", self._on_complete, self._failed)
        after(manager, "reset_cache", self._on_reset)

    def _on_prepared(self, prepared: Any, keys: Any, context: Any, *more: Any, **named: Any) -> None:
        evicted = () if prepared is None else prepared.evicted_keys
        self._note([(_name(key),) for key in evicted], getattr(context, "req_id", None))

    def _on_complete(self, keys: Any, context: Any, *more: Any, **named: Any) -> End:
        held, request_id = self._ready(keys), getattr(context, "req_id", None)
        return lambda *_: self._note([_name(key) for key in self._ready(keys) if key not in held], request_id)

    def held(self) -> Sequence[bytes]:
        return [_name(key) for key in self._ready(self._chunks())]

    def _ready(self, keys: Iterable[bytes]) -> list[bytes]:
        """The keys of chunks that can be loaded."""
        chunks = self._chunks()
        return [key for key in keys if key in chunks and chunks[key].is_ready]


def _name(key: bytes) -> bytes:
    """A chunk's name: the end of its last block's hash, and the number of its KV cache group."""
    return bytes(key[-HASH_BYTES - GROUP_BYTES :])
