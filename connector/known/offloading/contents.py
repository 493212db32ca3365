"""What a store of the OffloadingConnector in host memory holds, with several KV cache groups: chunk by chunk, of each group.

With one group its plans and evictions say the same, and the reasons why something was not stored, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from typing import Any

from kvtrail.connector.known.probe import CLEARED, Change, NotedChanges
from kvtrail.tracer.events.semconv import GROUP_BYTES, HASH_BYTES


class Contents(NotedChanges):
    """Follows a manager: its calls say what comes and goes, and do what they did."""

    tier = "cpu"
    changes_in_plans = True

    def __init__(self, manager: Any, chunks: Callable[[], Any]) -> None:
        """`chunks` gives all that the store has, by key, be it ready or on its way there."""
        super().__init__()
        self._chunks = chunks
        prepare, complete, reset = manager.prepare_store, manager.complete_store, manager.reset_cache

        @wraps(prepare)
        def prepare_store(keys: Any, context: Any, *more: Any, **named: Any) -> Any:
            prepared = prepare(keys, context, *more, **named)
            try:
                gone = () if prepared is None else prepared.evicted_keys
                self._note([(_name(key),) for key in gone], context)
            except Exception as error:
                self._failure = error
            return prepared

        @wraps(complete)
        def complete_store(keys: Collection[bytes], context: Any, *more: Any, **named: Any) -> Any:
            held = self._ready(keys)
            answer = complete(keys, context, *more, **named)
            try:
                self._note([_name(key) for key in self._ready(keys) if key not in held], context)
            except Exception as error:
                self._failure = error
            return answer

        @wraps(reset)
        def reset_cache(*arguments: Any, **named: Any) -> Any:
            answer = reset(*arguments, **named)
            self._changes.append((CLEARED, None))
            return answer

        manager.prepare_store, manager.complete_store, manager.reset_cache = prepare_store, complete_store, reset_cache

    def held(self) -> Sequence[bytes]:
        return [_name(key) for key in self._ready(self._chunks())]

    def _ready(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those that can be loaded."""
        chunks = self._chunks()
        return [key for key in keys if key in chunks and chunks[key].is_ready]

    def _note(self, changes: Iterable[Change], context: Any) -> None:
        request_id = getattr(context, "req_id", None)
        self._changes.extend([(change, request_id) for change in changes])


def _name(key: bytes) -> bytes:
    """A chunk's: the end of its last block's hash, and the number of its KV cache group."""
    return bytes(key[-HASH_BYTES - GROUP_BYTES :])
