"""What LMCache's local CPU backend holds, chunk by chunk.

LMCache names chunks by hashes of its own. Which of vLLM's blocks a chunk ends with is known when a request stores it, so the
worker's side notes that. Only lookups ask for what is noted, on the scheduler's side, so both must be in one process; and
nothing else may answer these lookups: no other tier, no layers apart, no chunks that are not full.

Known: LMCache 0.3.10, 0.3.11 and 0.5.6. All of them put chunks into the backend one by one, and remove them one by one.
"""

from __future__ import annotations

import weakref
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
        worker: LMCache's part of the connector on the worker's side.
    """

    tier = TIER
    changes_in_plans = False

    @classmethod
    def of(cls, engine_id: str) -> Contents:
        """The one of this engine in this process."""
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
        """The hash of its last block, of each chunk that is held, by LMCache's key."""
        self._copies: Counter[bytes] = Counter()
        """Chunks by this hash: LMCache may distinguish chunks that vLLM does not."""
        self._storing: str | None = None
        """The request that is being stored."""
        self._ends: dict[Any, int] = {}
        """Where its chunks end, in tokens, by LMCache's keys."""

    def register(self, worker: Any) -> None:
        """Remember LMCache's part of the connector on the worker's side."""
        self.worker = weakref.ref(worker)

    def follow(self) -> bool:
        """Whether the backend is followed, from now on at least: it must be empty then, and the only one."""
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
        """Note each chunk that comes and goes: LMCache's calls say it."""
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
        """Chunks that are in use stay: then each of the others leaves by itself."""
        was_held, waiting = bool(self._names), self._changes
        self._changes = deque()

        def cleared(*_: Any) -> None:
            gone, self._changes = self._changes, waiting
            waiting.extend(gone if self._names or not was_held else [(CLEARED, None)])

        return cleared

    def _gained(self, key: Any, block_size: int) -> None:
        """A chunk of the request that is being stored has come.

        Raises:
            KeyError, IndexError, TypeError: which blocks it stands for is not known.
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
    """The local CPU backend, where it alone answers LMCache's lookups; None where chunks may be elsewhere, too."""
    config, backends = engine.config, engine.storage_manager.storage_backends
    is_whole = (
        list(backends) == [BACKEND]
        and backends[BACKEND].use_hot
        and engine.metadata.world_size == 1
        and not (config.use_layerwise or config.save_unfull_chunk or config.enable_blending)
    )
    return backends[BACKEND] if is_whole else None


def _storing(worker: Any, tokens: Any) -> str | None:
    """The request with these tokens: an older LMCache does not say. Requests with the same tokens store the same."""
    metadata = worker._parent._connector_metadata
    return next((each.req_id for each in metadata.requests if each.token_ids[: len(tokens)] == tokens), None)
