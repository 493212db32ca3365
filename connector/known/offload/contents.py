"""What a store of the OffloadConnector holds, with several KV cache groups: of each group what each chunk has of it.

With one group its plans and evictions say the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from kvtrail.connector.known.probe import CLEARED, Change, Evicted, StoreContents
from kvtrail.connector.known.watching import after
from kvtrail.tracer.events.semconv import GROUP_BYTES, HASH_BYTES


class Contents(StoreContents):
    """Follows a connector by its plans and evictions. Full attention and a recurrent state are in a chunk or not, and named
    by the hash of its last block; of other groups a chunk may have some blocks only, and each has a name."""

    tier = "host"
    changes_in_plans = True

    def __init__(self, connector: Any) -> None:
        super().__init__()
        self._connector = connector
        self._held: defaultdict[str, list[bytes]] = defaultdict(list)
        """The names of what each chunk has, by its key."""
        after(connector._scheduler, "reset", self._on_reset)

    def _on_reset(self, result: None) -> None:
        self._held.clear()
        self._changes.append((CLEARED, None))

    def held(self) -> Sequence[bytes]:
        return [name for names in self._held.values() for name in names]

    def planned(self, plan: Any, evicted: Sequence[Evicted]) -> None:
        """A step stores what its plan says, after it has made room."""
        self.left(evicted)
        try:
            copies = [copy for copy in plan.to_store() if copy.blocks]
            for request_id, some in groupby(copies, lambda copy: copy.request_id):
                gained: list[bytes] = []
                for copy in some:
                    names = self._names(copy)
                    self._held[copy.key] += names
                    gained += names
                self._note(gained, request_id)
        except Exception as error:
            self._failure = error

    def left(self, evicted: Iterable[Evicted]) -> None:
        """These chunks have left the store."""
        for request_id, chunks in groupby(evicted, lambda chunk: chunk.request_id):
            names = [name for chunk in chunks for name in self._held.pop(chunk.key, ())]
            self._note([(name,) for name in sorted(names, key=lambda name: name[HASH_BYTES:])], request_id)

    def _names(self, copy: Any) -> list[bytes]:
        """What a copy brings into its chunk."""
        group = copy.group.to_bytes(GROUP_BYTES, "big")
        return [each[-HASH_BYTES:] + group for each in self._connector.hashes_of(copy)]

    def _note(self, changes: Iterable[Change], request_id: str | None) -> None:
        self._changes.extend([(change, request_id) for change in changes])
