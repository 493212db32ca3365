"""Records stores and removals of vLLM's own prefix cache, in order with the lookups.

vLLM's KV events have the same information but cost more: they carry the tokens and extra keys of blocks
(`benchmarks/prefix_cache.py`). So this module wraps the two methods that make all changes of the pool's map. Their behavior
and results do not change, and a map of an unknown form is not wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from kvtrail.connector.known.probe import CLEARED, Change
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.tracing.cache_events import CacheEvents, Scope, by_group
from kvtrail.connector.vllm_version import shows_changes
from kvtrail.tracer.events.semconv import GROUP_BYTES, HASH_BYTES

_HASH = itemgetter(slice(-HASH_BYTES - GROUP_BYTES, -GROUP_BYTES))
_GROUP = slice(-GROUP_BYTES, None)
"""A key of vLLM's map is a block's hash and the number of its KV cache group."""
_OURS = "_kvtrail_prefix_cache"


def can_be_followed(pool: Any) -> bool:
    """Whether a block pool's map has a known form."""
    held = getattr(pool, "cached_block_hash_to_block", None)
    return held is not None and shows_changes(type(held)) and isinstance(getattr(held, "_cache", None), dict)


class PrefixCacheEvents(CacheEvents):
    """The changes of one block pool's prefix cache. If a block has copies, the first store and the last removal are
    recorded."""

    @classmethod
    def of(cls, pool: Any, recorder: Recorder, *, has_groups: bool) -> PrefixCacheEvents:
        """The instance of this pool, shared by the children of a MultiConnector. `has_groups` says whether there are several
        KV cache groups."""
        held: PrefixCacheEvents | None = getattr(pool, _OURS, None)
        if held is None:
            held = cls(recorder, pool, has_groups)
            setattr(pool, _OURS, held)
        return held

    def __init__(self, recorder: Recorder, pool: Any, has_groups: bool) -> None:
        super().__init__(recorder)
        self._pool, self._has_groups = pool, has_groups
        self._map: Any = None
        """The observed map: each reset creates a new one."""

    def stop(self, source: bytes, step: int, at_ns: int) -> None:
        if self._map is not None:
            for name in ("insert", "pop"):
                vars(self._map).pop(name, None)
            self._map = None
            super().stop(source, step, at_ns)

    def _follow(self) -> None:
        held = self._pool.cached_block_hash_to_block
        if held is self._map:
            return
        if self._map is not None:
            self._pending.append(CLEARED)
            self._pending.extend(held._cache)
        self._map, changed = held, self._pending.append
        cached, plain_insert, plain_pop = held._cache, held.insert, held.pop

        def insert(key: bytes, block: Any) -> None:
            if key not in cached:
                changed(key)
            plain_insert(key, block)

        def pop(key: bytes, block_id: int) -> Any:
            popped = plain_pop(key, block_id)
            if popped is not None and key not in cached:
                changed((key,))
            return popped

        held.insert, held.pop = insert, pop

    def _snapshot(self) -> Sequence[Change]:
        return list(self._map._cache)

    def _parts(self, changes: Sequence[Change]) -> Sequence[tuple[Scope, Sequence[Change]]]:
        if not (self._has_groups and changes):
            return [((0 if self._has_groups else None, None, None), changes)]
        return [((group, None, None), some) for group, some in by_group(changes, _GROUP)]

    def _hashes(self, keys: Iterable[bytes]) -> bytes:
        return b"".join(map(_HASH, keys))
