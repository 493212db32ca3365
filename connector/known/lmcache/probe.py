"""LMCache in vLLM's process: its state is in the connector's `_lmcache_engine`.

Known: LMCache 0.3.10, 0.3.11 and 0.5.6, and the adapter that comes with vLLM 0.32 (`use_native`). All of them hold the
result of a request's latest lookup (`load_specs`) until the request is scheduled, and send their workers the loads and saves
of each request with every step. For an LMCache with another layout nothing is reported. After the layout was recognized once,
wrong values are reported unchanged, and values that cannot be read raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any
from weakref import WeakValueDictionary, ref

from kvtrail.connector.known.lmcache.contents import Contents
from kvtrail.connector.known.probe import Moved, Planned, Probe, Seen, StoreContents

OTHER_LAYOUT = (AttributeError, TypeError)
"""The exceptions of reading an LMCache with another layout."""


class PlanReader(Probe):
    """Reads the plans that LMCache's connectors send their workers. Plans with an unknown layout are not reported. After
    plans have been read once, a failure is raised."""

    def __init__(self) -> None:
        self._fits = False
        """Whether plans were read before."""

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        try:
            loads, stores = self.plans(connector, metadata)
        except OTHER_LAYOUT:
            if self._fits:
                raise
            return None
        if not (loads or stores):
            return None
        self._fits = True
        return Seen(loads, stores)

    def plans(self, connector: Any, metadata: Any) -> tuple[Sequence[Planned], Sequence[Planned]]:
        """The loads and stores of a step.

        Raises:
            AttributeError, TypeError: the connector has another layout.
        """
        raise NotImplementedError


class LMCacheProbe(PlanReader):
    """Remembers earlier lookups, to distinguish a remembered answer from a new one."""

    load_call, store_call = "start_load_kv", "wait_for_save"

    def __init__(self) -> None:
        super().__init__()
        self._seen: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The specifications of earlier lookups, by identity, for as long as LMCache holds them."""
        self._saving: tuple[Any, Sequence[Moved]] = (None, ())
        """The metadata of the current step, and its stores."""
        self._contents: Contents | None = None

    def made(self, connector: Any) -> None:
        self._contents = Contents.of(connector._vllm_config.kv_transfer_config.engine_id)
        if connector.role.name == "WORKER":
            self._contents.worker = ref(connector._lmcache_engine)

    def contents(self, connector: Any) -> StoreContents | None:
        contents = self._contents
        return contents if contents is not None and contents.follow() else None

    def chunk_size(self, connector: Any) -> int | None:
        size = getattr(getattr(connector, "_lmcache_engine", None), "_lmcache_chunk_size", None)
        return size if isinstance(size, int) else None

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """A lookup that LMCache carries out creates a new specification. If the old one is still there, the lookup was
        answered from memory, as in 0.3.10. Later versions remember the match but subtract again, so
        that their answers are not remembered ones."""
        if self._contents is not None:
            self._contents.requests[request.request_id] = request
        try:
            spec = connector._lmcache_engine.load_specs.get(request.request_id)
            matched = None if spec is None else index(spec.lmcache_cached_tokens)
        except OTHER_LAYOUT:
            return None, None
        if matched is None or matched < 0:
            return None, None
        if getattr(connector, "answered_from_memory", False):
            return matched, True  # an injected fault, in front of LMCache, remembered it
        return matched, self._seen_before(spec)

    def held_bytes(self, connector: Any) -> int | None:
        """On a worker, the bytes in LMCache's local CPU backend; other tiers are not host memory of this engine. A chunk has
        many MiB, so there are thousands of chunks at most."""
        try:
            backends = connector._lmcache_engine.lmcache_engine.storage_manager.storage_backends
            chunks = backends["LocalCPUBackend"].hot_cache
            held: int = sum(chunk.get_physical_size() for chunk in list(chunks.values()))
        except (*OTHER_LAYOUT, KeyError):
            return None
        return held

    def plans(self, connector: Any, metadata: Any) -> tuple[Sequence[Planned], Sequence[Planned]]:
        engine = connector._lmcache_engine
        size = engine._block_size
        loads = [_planned(r, start, end, r.slot_mapping[:end], size) for r, start, end in _to_load(metadata)]
        saves = _to_save(engine, metadata)
        return loads, [_planned(r, start, end, r.slot_mapping, size) for r, start, end in saves]

    def loads(self, connector: Any) -> Sequence[Moved]:
        """The tokens that were loaded beyond vLLM's computed ones, up to the first block that LMCache reports as failed."""
        self._note_saves(connector)
        try:
            engine = connector._lmcache_engine
            size, failed = engine._block_size, getattr(engine, "_invalid_block_ids", ())
            spans = _to_load(connector._connector_metadata)
            if failed:
                spans = [(r, start, _before_failed(r, start, end, size, failed)) for r, start, end in spans]
            return [_moved(r, start, end, size) for r, start, end in spans if end > start]
        except OTHER_LAYOUT:
            return ()

    def stores(self, connector: Any) -> Sequence[Moved]:
        """The stores that LMCache was given. LMCache overwrites its metadata when it stores, so the plan is read before. It
        refuses requests with a different number of tokens and slots; these are left out."""
        (metadata, moved), self._saving = self._saving, (None, ())
        return moved if moved and metadata is connector._connector_metadata else ()

    def _seen_before(self, spec: Any) -> bool | None:
        try:
            seen = self._seen.get(id(spec)) is spec
            self._seen[id(spec)] = spec
        except TypeError:  # in this LMCache a specification takes no weak reference
            return None
        return seen

    def _note_saves(self, connector: Any) -> None:
        self._saving = (None, ())
        try:
            engine, metadata = connector._lmcache_engine, connector._connector_metadata
            if engine.lmcache_engine is not None:  # otherwise it failed to start, and stores nothing
                saves = [each for each in _to_save(engine, metadata) if len(each[0].slot_mapping) == each[2]]
                self._saving = metadata, [_moved(r, start, end, engine._block_size) for r, start, end in saves]
        except OTHER_LAYOUT:
            pass


def _to_load(metadata: Any) -> list[tuple[Any, int, int]]:
    """The requests that load, each with its first token and its end, without the tokens that vLLM has computed."""
    specs = [(r, r.load_spec) for r in metadata.requests if r.load_spec and r.load_spec.can_load]
    return [(r, spec.vllm_cached_tokens, spec.lmcache_cached_tokens) for r, spec in specs]


def _to_save(engine: Any, metadata: Any) -> list[tuple[Any, int, int]]:
    """The requests that save, each with its first token, which begins a chunk, and its end, whether or not each token has a
    slot. A producer sends to a peer, which is not a store."""
    if engine.kv_role == "kv_producer":
        return []
    saving, chunk = [], engine._lmcache_chunk_size
    for request in metadata.requests:
        spec, end = request.save_spec, len(request.token_ids)
        if spec and spec.can_save and spec.skip_leading_tokens != end:
            start = spec.skip_leading_tokens // chunk * chunk
            if start < end:
                saving.append((request, start, end))
    return saving


def _planned(request: Any, start: int, end: int, slots: Any, block_size: int) -> Planned:
    """The plan of a transfer. The blocks are in the order of their tokens, and a block that LMCache lists twice is repeated.
    If a load ends before its start, its plan has 0 tokens."""
    first = start // block_size * block_size
    blocks = (slots[first::block_size] // block_size).tolist()
    return Planned(request.req_id, start, max(0, end - start), tuple(blocks))


def _moved(request: Any, start: int, end: int, block_size: int) -> Moved:
    """A completed transfer. Each block counts once. The bytes are unknown, since chunks may be compressed."""
    blocks = (request.slot_mapping[start:end] // block_size).unique().numel()
    return Moved(request.req_id, start, end - start, blocks, None)


def _before_failed(request: Any, start: int, end: int, block_size: int, failed: Any) -> int:
    """The first token in a failed block of a request, or `end`."""
    blocks = (request.slot_mapping[start:end] // block_size).tolist()
    return next((start + n for n, block in enumerate(blocks) if block in failed), end)


PROBE = LMCacheProbe
