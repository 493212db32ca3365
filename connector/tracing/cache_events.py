"""What a cache has gained and lost, recorded in its place among the lookups: change by change, and seldom as a whole."""

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
"""Changes that wait to be recorded; beyond them, all that the cache holds is recorded again."""
MAX_PER_EVENT = 8_192
"""Changes in one event."""
MIN_BATCH = 64
"""Changes that are recorded at the end of a step; fewer can wait for a lookup."""
MAX_DELAY_NS = 10**9
"""How long they wait at most, while there are steps."""
RESYNC_NS = 600 * 10**9
"""After how long all that the cache holds is recorded again, for a sidecar that started later."""
_GROUP = slice(HASH_BYTES, None)
"""Where a chunk's key has the number of its KV cache group, if there are several."""
Scope = tuple[int | None, str | None, str | None]
"""What changes have in common: the KV cache group, the tier of a connector's store, and the request that made them."""
StoreChange = tuple[Change, str | None]
"""A change, and the request with the store that made it."""


class CacheEvents(ABC):
    """Records the changes of one cache. Subclasses follow it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pending: deque[Any] = deque(maxlen=MAX_PENDING)
        """Changes that are not recorded yet."""
        self._dropped = 0
        self._flushed_ns = self._resync_ns = 0

    def flush(self, source: bytes, step: int, at_ns: int, *, can_wait: bool = False) -> None:
        """Record what has changed; at level `detailed` only. It `can_wait` for more at the end of a step."""
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
        """Stop following the cache, and record that; all that it holds is recorded again when it is followed again."""
        self._resync_ns = 0
        self._pending.clear()
        ((_, tier, _), _), *_ = self._parts(())
        self._recorder.record(Kind.PREFIX_CACHE, source, None, at_ns, at_ns, (None, None, None, step, None, tier, None))

    @abstractmethod
    def _follow(self) -> None:
        """Follow the cache from now on, if it is not followed yet."""

    @abstractmethod
    def _snapshot(self) -> Sequence[Any]:
        """All that the cache holds, as changes."""

    @abstractmethod
    def _parts(self, changes: Sequence[Any]) -> Sequence[tuple[Scope, Sequence[Change]]]:
        """The changes, in parts that have something in common; at least one part."""

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
    """Records what the store of one connector object gains and loses, where its probe follows that."""

    def __init__(self, recorder: Recorder, contents: StoreContents) -> None:
        super().__init__(recorder)
        self._contents = contents
        self.changes_in_plans = contents.changes_in_plans
        """Whether it changes while vLLM plans a step, after vLLM's own cache has."""

    def stop(self, source: bytes, step: int, at_ns: int) -> None:
        if self._resync_ns:
            super().stop(source, step, at_ns)

    def _follow(self) -> None:
        self._pending.extend(self._contents.changed())

    def _snapshot(self) -> Sequence[StoreChange]:
        return [(key, None) for key in self._contents.held()]

    def _parts(self, changes: Sequence[StoreChange]) -> Sequence[tuple[Scope, Sequence[Change]]]:
        tier, named = self._contents.tier, self._recorder.contexts.named
        parts: list[tuple[Scope, Sequence[Change]]] = []
        for request_id, some in groupby(changes, itemgetter(1)):
            name = None if request_id is None else named(request_id).name
            parts += [((group, tier, name), own) for group, own in by_group((change for change, _ in some), _GROUP)]
        return parts or [((None, tier, None), ())]

    def _hashes(self, keys: Iterable[bytes]) -> bytes:
        return b"".join([key[:HASH_BYTES] for key in keys])


def by_group(changes: Iterable[Change], where: slice) -> list[tuple[int | None, list[Change]]]:
    """Changes by KV cache group, the number that stands there in their keys. vLLM stores for one group after the other, block
    by block, so that events would be cut at nearly every change. The order is kept within each group, beside `CLEARED`, which
    concerns all of them, and among what groups lose: a hit is lost with the first part that one of them loses."""
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
    """Changes as `PrefixCache.cache_changes` has them, and the keys that these concern."""
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
