"""Records the changes of a cache in order with the lookups, and occasionally its complete contents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import compress, groupby
from operator import itemgetter
from typing import Any

from kvtrail.connector.known.probe import CLEARED, Change, StoreContents
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.events.semconv import HASH_BYTES, Kind

MAX_PENDING = 65_536
"""Maximum number of unrecorded changes; beyond it, the complete contents are recorded again."""
MAX_PER_EVENT = 8_192
"""Maximum number of changes in one event."""
MIN_BATCH = 64
"""Number of changes from which they are recorded at the end of a step; fewer can wait for a lookup."""
MAX_DELAY_NS = 10**9
"""Maximum wait of changes, while there are steps."""
RESYNC_NS = 600 * 10**9
"""Interval after which the complete contents are recorded again, for a sidecar that started later."""
_GROUP = slice(HASH_BYTES, None)
"""The position of the KV cache group's number in a chunk's key, if there are several groups."""
Scope = tuple[int | None, str | None, str | None]
"""The common properties of changes: the KV cache group, the tier of a connector's store, and the request that caused them."""
StoreChange = tuple[Change, str | None]
"""A change, and the request whose store caused it."""


class CacheEvents(ABC):
    """Records the changes of one cache. Subclasses observe the cache."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pending: deque[Any] = deque(maxlen=MAX_PENDING)
        """Changes that are not recorded yet."""
        self._dropped = 0
        self._flushed_ns = self._resync_ns = 0

    def flush(self, source: bytes, step: int, at_ns: int, *, can_wait: bool = False) -> None:
        """Record the changes; only at level `detailed`. They can wait for more at the end of a step (`can_wait`)."""
        if not self._recorder.level.detailed:
            self.stop(source, step, at_ns)
            return
        self._follow()
        changes, dropped = self._pending, self._recorder.dropped
        whole = at_ns >= self._resync_ns or dropped != self._dropped or len(changes) == MAX_PENDING
        if whole or (
            changes and not (can_wait and len(changes) < MIN_BATCH and at_ns < self._flushed_ns + MAX_DELAY_NS)
        ):
            self._flushed_ns = at_ns
            self._record(source, step, at_ns, list(changes))
            changes.clear()
        if whole:
            self._dropped, self._resync_ns = dropped, at_ns + RESYNC_NS
            self._record(source, step, at_ns, self._snapshot(), whole=True)

    def stop(self, source: bytes, step: int, at_ns: int) -> None:
        """Stop observing the cache, and record that; the complete contents are recorded when observation resumes."""
        self._resync_ns = 0
        self._pending.clear()
        ((_, tier, _), _), *_ = self._parts(())
        self._recorder.record(Kind.PREFIX_CACHE, source, None, at_ns, at_ns, (None, None, None, step, None, tier, None))

    @abstractmethod
    def _follow(self) -> None:
        """Start to observe the cache, unless it is already observed."""

    @abstractmethod
    def _snapshot(self) -> Sequence[Any]:
        """The complete contents of the cache, as changes."""

    @abstractmethod
    def _parts(self, changes: Sequence[Any]) -> Sequence[tuple[Scope, Sequence[Change]]]:
        """The changes, in parts with common properties; at least one part."""

    @abstractmethod
    def _hashes(self, keys: Iterable[bytes]) -> bytes:
        """The hashes of these keys, concatenated."""

    def _record(
        self, source: bytes, step: int, at_ns: int, changes: Sequence[Any], *, whole: bool | None = None
    ) -> None:
        if not (changes or whole):
            return
        for (group, tier, request), some in self._parts(changes):
            for first in range(0, max(len(some), 1), MAX_PER_EVENT):
                runs, keys = _runs(some[first : first + MAX_PER_EVENT])
                values = (runs, self._hashes(keys), group, step, whole, tier, request)
                self._recorder.record(Kind.PREFIX_CACHE, source, None, at_ns, at_ns, values)
                whole = None


class StoreEvents(CacheEvents):
    """Records the changes of one connector object's store, if its probe observes them."""

    def __init__(self, recorder: Recorder, contents: StoreContents) -> None:
        super().__init__(recorder)
        self.contents = contents

    def stop(self, source: bytes, step: int, at_ns: int) -> None:
        if self._resync_ns:
            super().stop(source, step, at_ns)

    def _follow(self) -> None:
        self._pending.extend(self.contents.changed())

    def _snapshot(self) -> Sequence[StoreChange]:
        return [(key, None) for key in self.contents.held()]

    def _parts(self, changes: Sequence[StoreChange]) -> Sequence[tuple[Scope, Sequence[Change]]]:
        tier, named = self.contents.tier, self._recorder.contexts.named
        parts: list[tuple[Scope, Sequence[Change]]] = []
        for request_id, some in groupby(changes, itemgetter(1)):
            name = None if request_id is None else named(request_id).name
            parts += [((group, tier, name), own) for group, own in by_group((change for change, _ in some), _GROUP)]
        return parts or [((None, tier, None), ())]

    def _hashes(self, keys: Iterable[bytes]) -> bytes:
        return b"".join([key[:HASH_BYTES] for key in keys])


def by_group(changes: Iterable[Change], where: slice) -> list[tuple[int | None, list[Change]]]:
    """Changes by KV cache group, whose number is in their keys. vLLM stores for the groups in turn, block by block, so that
    events would be split at nearly every change. The order is kept within each group, relative to `CLEARED`, which concerns
    all groups, and among evictions: the first eviction in any group ends a hit."""
    parts: list[tuple[bytes, list[Change]]] = []
    own: defaultdict[bytes, list[Change]] = defaultdict(list)
    loser: bytes | None = None
    for kind, some in groupby(changes, type):
        if kind is bytes:
            stored: list[Any] = list(some)
            groups = list(map(itemgetter(where), stored))
            for group in dict.fromkeys(groups):
                own[group] += compress(stored, map(group.__eq__, groups))
        elif kind is tuple:
            for change in some:
                group = change[0][where]  # type: ignore[index]  # tuples, all of them
                if loser not in (None, group):
                    parts += own.items()
                    own.clear()
                loser = group
                own[group].append(change)
        else:
            parts += [*own.items(), (b"", [CLEARED])]
            own.clear()
            loser = None
    return [(int.from_bytes(group, "big") if group else None, some) for group, some in (*parts, *own.items())]


def _runs(changes: Iterable[Change]) -> tuple[tuple[int, ...], list[bytes]]:
    """Changes in the form of `PrefixCache.cache_changes`, and their keys."""
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
    return tuple(runs), keys
