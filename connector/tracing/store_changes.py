"""What a connector's store has gained and lost, where the connector's probe follows that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from kvtrail.connector.known.probe import Change, StoreContents
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.tracing.cache_changes import Changes, Whose

_BY_REQUEST = itemgetter(1)
StoreChange = tuple[Change, str | None]
"""A change, and the request whose store made it."""


class StoreChanges(Changes):
    """Tells the changes of the store of one connector object."""

    def __init__(self, recorder: Recorder, contents: StoreContents) -> None:
        super().__init__(recorder)
        self._contents = contents

    def let_go(self, source: bytes, step: int, at_ns: int) -> None:
        if self._again_ns:
            super().let_go(source, step, at_ns)

    def _follow(self) -> None:
        self._changes.extend(self._contents.changed())

    def _held(self) -> Sequence[StoreChange]:
        return [(key, None) for key in self._contents.held()]

    def _parts(self, changes: Sequence[StoreChange]) -> Sequence[tuple[Whose, Sequence[Change]]]:
        tier, named = self._contents.tier, self._recorder.contexts.named
        parts: list[tuple[Whose, Sequence[Change]]] = []
        for request_id, some in groupby(changes, _BY_REQUEST):
            name = None if request_id is None else named(request_id).name
            parts.append(((None, tier, name), [change for change, _ in some]))
        return parts or [((None, tier, None), ())]

    def _hashes(self, keys: Iterable[bytes]) -> bytes:
        return b"".join(keys)
