"""The chunks in LMCache's local CPU backend.

LMCache names chunks by its own hashes. When a request stores a chunk, the worker's side notes the hash of the vLLM block with
which the chunk ends. Lookups read these notes on the scheduler's side, so both sides must be in one process. The backend
alone must answer lookups: no other tier, no layer-wise storage, and no partial chunks.

Known: LMCache 0.3.10, 0.3.11 and 0.5.6. All of them add chunks to the backend, and remove them, one by one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

from kvtrail.connector.known.probe import CLEARED, StoreContents
from kvtrail.connector.known.watching import End, after, watch
from kvtrail.tracer.events.semconv import HASH_BYTES

BACKEND = "LocalCPUBackend"
TIER = "cpu"
_OF_ENGINES: WeakValueDictionary[str, Contents] = WeakValueDictionary()


class Contents(StoreContents):
    """Follows the local CPU backend of one engine.

    Attributes:
        requests: vLLM's requests, by their ids, as long as they are open.
        worker: a weak reference to LMCache's part of the connector on the worker's side.
    """

    tier = TIER
    changes_in_plans = False

    @classmethod
    def of(cls, engine_id: str) -> Contents:
        """The instance of this engine in this process."""
        contents = _OF_ENGINES.get(engine_id)
        if contents is None:
            contents = _OF_ENGINES[engine_id] = cls()
        return contents

    def __init__(self) -> None:
        super().__init__()
        self.requests: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self.worker: Callable[[], Any] = lambda: None
        self._follows: Any = None
        """The backend that is followed."""
        self._names: dict[Any, bytes] = {}
        """The hash of the last block of each held chunk, by LMCache's key."""
        self._copies: Counter[bytes] = Counter()
        """The number of chunks with each hash: LMCache may distinguish chunks that have the same hash in vLLM."""
        self._storing: str | None = None
        """The request that is being stored."""
        self._ends: dict[Any, int] = {}
        """The ends of its chunks, in tokens, by LMCache's key."""

    def follow(self) -> bool:
        """Follow the backend; returns whether it is followed. At the start it must be empty, and the only backend."""
        worker = self.worker()
        engine = getattr(worker, "lmcache_engine", None)
        backend = None if engine is None else _only_backend(engine)
        if backend is None or backend is not self._follows:
            if backend is None or self._follows is not None or len(backend.hot_cache):
                return False
            self._hear(worker, engine, backend)
            self._follows = backend
        return True

    def held(self) -> Sequence[bytes]:
        return list(self._copies)

    def _hear(self, worker: Any, engine: Any, backend: Any) -> None:
        """Observe LMCache's calls that add or remove a chunk."""
        process: Callable[..., Iterator[Any]] = engine.token_database.process_tokens

        @wraps(process)
        def processing(*arguments: Any, **named: Any) -> Iterator[Any]:
            for chunk in process(*arguments, **named):
                if self._storing is not None:
                    self._ends[chunk[2]] = chunk[1]
                yield chunk

        def storing(*arguments: Any, **named: Any) -> End:
            tokens = arguments[0] if arguments else named.get("tokens")
            self._storing = named.get("req_id") or _storing(worker, tokens)
            return self._on_stored

        def put(answer: Any, key: Any, *arguments: Any, **named: Any) -> None:
            if key not in self._names and key in backend.hot_cache:
                self._gained(key, worker._block_size)

        def removed(answer: Any, key: Any, *arguments: Any, **named: Any) -> None:
            if key in self._names and key not in backend.hot_cache:
                self._lost(key)

        engine.token_database.process_tokens = processing
        watch(engine, "store", storing, self._failed)
        after(backend, "submit_put_task", put, self._failed)
        after(backend, "remove", removed, self._failed)
        watch(backend, "clear", self._on_clear)

    def _on_stored(self, *_: Any) -> None:
        self._storing = None
        self._ends.clear()

    def _on_clear(self, *_: Any, **named: Any) -> End:
        """Observe a clear. If chunks in use remain, the removal of each other chunk is recorded, otherwise one clear."""
        was_held, waiting = bool(self._names), self._changes
        self._changes = deque()

        def cleared(*_: Any) -> None:
            gone, self._changes = self._changes, waiting
            waiting.extend(gone if self._names or not was_held else [(CLEARED, None)])

        return cleared

    def _gained(self, key: Any, block_size: int) -> None:
        """Note a new chunk of the request that is being stored.

        Raises:
            KeyError, IndexError, TypeError: the chunk's blocks are unknown.
        """
        request = self.requests[self._storing]  # type: ignore[index]  # nothing else puts chunks there
        name = bytes(request.block_hashes[self._ends[key] // block_size - 1])[-HASH_BYTES:]
        self._names[key] = name
        self._copies[name] += 1
        if self._copies[name] == 1:
            self._changes.append((name, self._storing))

    def _lost(self, key: Any) -> None:
        name = self._names.pop(key)
        self._copies[name] -= 1
        if not self._copies[name]:
            del self._copies[name]
            self._changes.append(((name,), self._storing))


def _only_backend(engine: Any) -> Any:
    """The local CPU backend, if it alone answers LMCache's lookups; None if chunks may also be elsewhere."""
    config, backends = engine.config, engine.storage_manager.storage_backends
    is_whole = (
        list(backends) == [BACKEND]
        and backends[BACKEND].use_hot
        and engine.metadata.world_size == 1
        and not (config.use_layerwise or config.save_unfull_chunk or config.enable_blending)
    )
    return backends[BACKEND] if is_whole else None


def _storing(worker: Any, tokens: Any) -> str | None:
    """The request with these tokens, for an older LMCache, which does not name it. Requests with the same tokens store
    the same chunks."""
    metadata = worker._parent._connector_metadata
    return next((each.req_id for each in metadata.requests if each.token_ids[: len(tokens)] == tokens), None)
