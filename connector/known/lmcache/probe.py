"""LMCache in vLLM's process: its own books are beside the connector, in `_lmcache_engine`.

Known: LMCache 0.3.10, 0.3.11 and 0.5.6, and the adapter that vLLM 0.32 brings along (`use_native`). All of them keep, until a
request is scheduled, what the latest lookup found (`load_specs`), and send their workers, with every step, what each request
loads and saves. An LMCache that keeps its books elsewhere is left unseen, not guessed at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from kvtrail.connector.known.probe import Moved, Planned, Probe, Seen

_FOREIGN = (AttributeError, TypeError)
"""What reading raises where an LMCache keeps its books in another way."""


class LMCacheProbe(Probe):
    """Of one connector object, since it remembers what it has seen."""

    load_call, store_call = "start_load_kv", "wait_for_save"

    def __init__(self) -> None:
        self._seen: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The specifications that earlier lookups left, for as long as LMCache keeps them."""
        self._saving: _Saving | None = None

    def chunk_size(self, connector: Any) -> int | None:
        size = getattr(getattr(connector, "_lmcache_engine", None), "_lmcache_chunk_size", None)
        return size if isinstance(size, int) else None

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """A lookup that LMCache carries out leaves a new specification. One that leaves the old one has given a remembered
        answer, as 0.3.10 does. (Later versions remember what matched but subtract anew: that answer is not remembered.)
        """
        try:
            spec = connector._lmcache_engine.load_specs.get(request.request_id)
            matched = None if spec is None else spec.lmcache_cached_tokens
        except _FOREIGN:
            return None, None
        if not isinstance(matched, int):
            return None, None
        if getattr(connector, "answered_from_memory", False):
            return matched, True  # an injected fault, in front of LMCache, has remembered
        return matched, self._seen_before(spec)

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        try:
            engine = connector._lmcache_engine
            size = engine._block_size
            loads = [_planned(r, start, end, size) for r, start, end in _to_load(metadata)]
            stores = [_planned(r, start, end, size) for r, start, end in _to_save(engine, metadata)]
        except _FOREIGN:
            return None
        return Seen(loads, stores) if loads or stores else None

    def loads(self, connector: Any) -> Sequence[Moved]:
        """What was loaded beyond the tokens that vLLM had: up to the first block that LMCache reports as failed."""
        self._note_saves(connector)
        try:
            engine = connector._lmcache_engine
            spans = _to_load(connector._connector_metadata)
            failed = getattr(engine, "_invalid_block_ids", ())
            if failed:
                spans = [
                    (r, start, _before_failed(r, start, end, engine._block_size, failed)) for r, start, end in spans
                ]
            return [_moved(r, start, end, engine._block_size) for r, start, end in spans if end > start]
        except _FOREIGN:
            return ()

    def stores(self, connector: Any) -> Sequence[Moved]:
        """What LMCache was given to store. It says 'skip what I have stored' in its metadata as it goes, so what was to be
        stored has been noted before.
        """
        saving, self._saving = self._saving, None
        if saving is None or saving.metadata is not connector._connector_metadata:
            return ()
        return saving.moved

    def _seen_before(self, spec: Any) -> bool | None:
        try:
            seen = self._seen.get(id(spec)) is spec
            self._seen[id(spec)] = spec
        except TypeError:  # this LMCache's specification takes no weak reference
            return None
        return seen

    def _note_saves(self, connector: Any) -> None:
        self._saving = None
        try:
            engine, metadata = connector._lmcache_engine, connector._connector_metadata
            if engine.lmcache_engine is None:
                return  # it failed to start, and stores nothing
            moved = [_moved(r, start, end, engine._block_size) for r, start, end in _to_save(engine, metadata)]
        except _FOREIGN:
            return
        self._saving = _Saving(metadata, moved)


class _Saving(NamedTuple):
    """What a step's metadata asks to save."""

    metadata: Any
    moved: list[Moved]


def _to_load(metadata: Any) -> list[tuple[Any, int, int]]:
    """The requests that are to load, and from which token to which: beyond those that vLLM has."""
    specs = [(r, r.load_spec) for r in metadata.requests if r.load_spec and r.load_spec.can_load]
    return [(r, spec.vllm_cached_tokens, spec.lmcache_cached_tokens) for r, spec in specs]


def _to_save(engine: Any, metadata: Any) -> list[tuple[Any, int, int]]:
    """The same of those that are to save, in whole chunks. What a producer sends to a peer is no store."""
    if engine.kv_role == "kv_producer":
        return []
    found, chunk = [], engine._lmcache_chunk_size
    for request in metadata.requests:
        spec, end = request.save_spec, len(request.token_ids)
        if spec and spec.can_save and spec.skip_leading_tokens < end == len(request.slot_mapping):
            found.append((request, spec.skip_leading_tokens // chunk * chunk, end))
    return found


def _planned(request: Any, start: int, end: int, block_size: int) -> Planned:
    """The blocks stand in the order of their tokens; one that stands twice in LMCache's list stands twice here."""
    first = start // block_size * block_size
    blocks = (request.slot_mapping[first:end:block_size] // block_size).tolist()
    return Planned(request.req_id, start, end - start, tuple(blocks))


def _moved(request: Any, start: int, end: int, block_size: int) -> Moved:
    """The blocks are those that LMCache copies from or to, each counted once. Its chunks may be compressed: of their bytes
    nothing is said.
    """
    blocks = (request.slot_mapping[start:end] // block_size).unique().numel()
    return Moved(request.req_id, start, end - start, blocks, None)


def _before_failed(request: Any, start: int, end: int, block_size: int, failed: Any) -> int:
    """Where the first failed block of a request begins, or `end`."""
    blocks = (request.slot_mapping[start:end] // block_size).tolist()
    return next((start + n for n, block in enumerate(blocks) if block in failed), end)


PROBE = LMCacheProbe
