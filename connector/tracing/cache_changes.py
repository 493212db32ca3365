"""What a cache has gained and lost, told in its place among the lookups: change by change, and seldom as a whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from kvtrail.connector.known.probe import Change
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.events.semconv import Kind

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
_CACHE = Kind.PREFIX_CACHE.value
Whose = tuple[int | None, str | None, str | None]
"""What changes have in common: the KV cache group, the tier of a connector's store, and the request that made them."""


class Changes:
    """Tells the changes of one cache. Subclasses follow it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._changes: deque[Any] = deque(maxlen=MOST_CHANGES)
        """What has changed and was not told yet."""
        self._dropped = 0
        self._told_ns = self._again_ns = 0

    def tell(self, source: bytes, step: int, at_ns: int, *, can_wait: bool = False) -> None:
        """Tell what has changed; at level `detailed` only. It `can_wait` for more at the end of a step."""
        if not self._recorder.level.detailed:
            self.let_go(source, step, at_ns)
            return
        self._follow()
        changes, dropped = self._changes, self._recorder.dropped
        whole = at_ns >= self._again_ns or dropped != self._dropped or len(changes) == MOST_CHANGES
        if whole or (changes and not (can_wait and len(changes) < MANY and at_ns < self._told_ns + SOON_NS)):
            self._told_ns = at_ns
            self._record(source, step, at_ns, list(changes))
            changes.clear()
        if whole:
            self._dropped, self._again_ns = dropped, at_ns + AGAIN_NS
            self._record(source, step, at_ns, self._held(), whole=True)

    def let_go(self, source: bytes, step: int, at_ns: int) -> None:
        """Follow the cache no more, and say so; all that it holds is told anew when it is followed again."""
        self._again_ns = 0
        self._changes.clear()
        ((_, tier, _), _), *_ = self._parts(())
        self._recorder.record(_CACHE, source, None, at_ns, at_ns, (None, None, None, step, None, tier, None))

    def _follow(self) -> None:
        """Follow the cache from now on, if it is not followed yet."""
        raise NotImplementedError

    def _held(self) -> Sequence[Any]:
        """All that the cache holds, as changes."""
        raise NotImplementedError

    def _parts(self, changes: Sequence[Any]) -> Sequence[tuple[Whose, Sequence[Change]]]:
        """The changes, cut where what they have in common is another; at least one part."""
        raise NotImplementedError

    def _hashes(self, keys: Iterable[bytes]) -> bytes:
        """The hashes of these keys, one behind the other."""
        raise NotImplementedError

    def _record(
        self, source: bytes, step: int, at_ns: int, changes: Sequence[Any], *, whole: bool | None = None
    ) -> None:
        if not (changes or whole):
            return
        for (group, tier, request), some in self._parts(changes):
            for first in range(0, max(len(some), 1), MOST_AT_ONCE):
                runs, keys = _runs(some[first : first + MOST_AT_ONCE])
                values = (runs, self._hashes(keys), group, step, whole, tier, request)
                self._recorder.record(_CACHE, source, None, at_ns, at_ns, values)
                whole = None


def _runs(changes: Iterable[Change]) -> tuple[tuple[int, ...], list[bytes]]:
    """Changes as `semconv.CHANGES` has them, and the keys that these concern."""
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
