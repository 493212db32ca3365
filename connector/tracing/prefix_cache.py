"""What vLLM's own prefix cache has stored and removed, told in its place among the lookups.

vLLM's KV events say the same and cost more: they carry the tokens and extra keys of blocks (`benchmarks/prefix_cache.py`). So
the two methods are followed through which all changes of the pool's map go. What they do and answer stays as it is, and a map
of a form that was not looked at is left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.vllm_version import shows_changes
from kvtrail.tracer.model.semconv import HASH_BYTES, Kind

MOST_CHANGES = 65_536
"""Changes that wait to be told at most; beyond them all that the cache holds is told anew."""
MOST_AT_ONCE = 8_192
"""Changes in one event."""
MANY = 64
"""So many changes are told at the end of a step; fewer can wait for a lookup."""
SOON_NS = 10**9
"""How long they wait at most, while there are steps."""
AGAIN_NS = 600 * 10**9
"""After how long all that the cache holds is told anew, to a tracer that began later, too."""
_PREFIX_CACHE = Kind.PREFIX_CACHE.value
_GROUP_BYTES = 4
"""A key of vLLM's map is a block's hash and the number of its KV cache group."""
_HASH = itemgetter(slice(-HASH_BYTES - _GROUP_BYTES, -_GROUP_BYTES))
_GROUP = itemgetter(slice(-_GROUP_BYTES, None))
_CLEARED = None
_OURS = "_kvtrail_prefix_cache"
Change = bytes | tuple[bytes] | None
"""A key that is held now, one that is not any more, in a tuple, or `_CLEARED`."""


def can_be_followed(pool: Any) -> bool:
    """Whether a block pool's map has the form that has been looked at."""
    held = getattr(pool, "cached_block_hash_to_block", None)
    return held is not None and shows_changes(type(held)) and isinstance(getattr(held, "_cache", None), dict)


class PrefixCache:
    """The changes of one block pool's prefix cache. Of a block with copies, the first that is stored and the last that is
    removed are told."""

    @classmethod
    def of(cls, pool: Any, recorder: Recorder, *, has_groups: bool) -> PrefixCache:
        """The one of this pool: the children of a MultiConnector share it. `has_groups` says whether there are several KV
        cache groups."""
        held: PrefixCache | None = getattr(pool, _OURS, None)
        if held is None:
            held = cls(recorder, pool, has_groups)
            setattr(pool, _OURS, held)
        return held

    def __init__(self, recorder: Recorder, pool: Any, has_groups: bool) -> None:
        self._recorder, self._pool, self._has_groups = recorder, pool, has_groups
        self._map: Any = None
        """The one that is followed: each reset makes a new one."""
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._dropped = 0
        self._told_ns = self._again_ns = 0

    def tell(self, source: bytes, step: int, at_ns: int, *, can_wait: bool = False) -> None:
        """Tell what has changed; at level `detailed` only. It `can_wait` for more at the end of a step."""
        if not self._recorder.level.detailed:
            self.let_go()
            return
        if self._pool.cached_block_hash_to_block is not self._map:
            self._follow(self._pool.cached_block_hash_to_block)
        changes, dropped = self._changes, self._recorder.dropped
        whole = at_ns >= self._again_ns or dropped != self._dropped or len(changes) == MOST_CHANGES
        if whole or (changes and not (can_wait and len(changes) < MANY and at_ns < self._told_ns + SOON_NS)):
            self._told_ns = at_ns
            self._record(source, step, at_ns, list(changes))
            changes.clear()
        if whole:
            self._dropped, self._again_ns = dropped, at_ns + AGAIN_NS
            self._record(source, step, at_ns, list(self._map._cache), whole=True)

    def let_go(self) -> None:
        """Follow it no more; all that it holds is told anew when it is followed again."""
        if self._map is not None:
            for name in ("insert", "pop"):
                vars(self._map).pop(name, None)
            self._map, self._again_ns = None, 0
            self._changes.clear()

    def _follow(self, held: Any) -> None:
        """Follow another map, in the place of the one before."""
        if self._map is not None:
            self._changes.append(_CLEARED)
            self._changes.extend(held._cache)
        self._map, changed = held, self._changes.append
        is_held, plain_insert, plain_pop = held.get_one_block, held.insert, held.pop

        def insert(key: bytes, block: Any) -> None:
            if is_held(key) is None:
                changed(key)
            plain_insert(key, block)

        def pop(key: bytes, block_id: int) -> Any:
            popped = plain_pop(key, block_id)
            if popped is not None and is_held(key) is None:
                changed((key,))
            return popped

        held.insert, held.pop = insert, pop

    def _record(
        self, source: bytes, step: int, at_ns: int, changes: Sequence[Change], *, whole: bool | None = None
    ) -> None:
        for group, some in self._by_group(changes) or [(None, changes)] * bool(whole):
            for first in range(0, max(len(some), 1), MOST_AT_ONCE):
                runs, hashes = _said(some[first : first + MOST_AT_ONCE])
                values = (runs, hashes, group, step, whole)
                self._recorder.record(_PREFIX_CACHE, source, None, at_ns, at_ns, values)
                whole = None

    def _by_group(self, changes: Sequence[Change]) -> list[tuple[int | None, Sequence[Change]]]:
        """The changes, cut where the KV cache group changes, each part with its group."""
        if not self._has_groups:
            return [(None, changes)] if changes else []
        return [(group, list(some)) for group, some in groupby(changes, _group_of)]


def _group_of(change: Change) -> int | None:
    """The KV cache group of a change; None for that of all."""
    if change is _CLEARED:
        return None
    return int.from_bytes(_GROUP(change[0] if isinstance(change, tuple) else change), "big")


def _said(changes: Sequence[Change]) -> tuple[tuple[int, ...], bytes]:
    """Changes as `semconv.CHANGES` has them, and the hashes that these concern."""
    runs: list[int] = []
    keys: list[bytes] = []
    for kind, some in groupby(changes, type):
        before = len(keys)
        if kind is tuple:
            keys += [key for (key,) in some]  # type: ignore[misc]  # tuples, all of them
            runs.append(before - len(keys))
        elif kind is bytes:
            keys += some  # type: ignore[arg-type]
            runs.append(len(keys) - before)
        else:
            runs.append(0)
    return tuple(runs), b"".join(map(_HASH, keys))
