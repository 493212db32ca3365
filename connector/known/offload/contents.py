"""The contents of an OffloadConnector's store, with several KV cache groups: the blocks of each group in each chunk.

With one group, its plans and evictions have the same information.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from kvtrail.connector.known.probe import Evicted, StoreContents
from kvtrail.connector.known.watching import after
from kvtrail.tracer.events.semconv import GROUP_BYTES, HASH_BYTES


class Contents(StoreContents):
    """Observes the plans and evictions of a connector. A chunk has all or none of the blocks of full attention and recurrent
    states, which are named by the hash of the last block. It may have some of the blocks of other groups; each is named."""

    tier = "host"
    changes_in_plans = True

    def __init__(self, connector: Any) -> None:
        super().__init__()
        self._connector = connector
        self._held: defaultdict[str, list[bytes]] = defaultdict(list)
        """The names in each chunk, by the chunk's key."""
        after(connector._scheduler, "reset", self._on_reset)

    def _on_reset(self, *_: Any, **named: Any) -> None:
        self._held.clear()
        super()._on_reset()

    def held(self) -> Sequence[bytes]:
        return [name for names in self._held.values() for name in names]

    def planned(self, plan: Any, evicted: Sequence[Evicted]) -> None:
        """Note a step's evictions, and then the stores of its plan."""
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
        """Note that these chunks have left the store."""
        for request_id, chunks in groupby(evicted, lambda chunk: chunk.request_id):
            names = [name for chunk in chunks for name in self._held.pop(chunk.key, ())]
            self._note([(name,) for name in sorted(names, key=lambda name: name[HASH_BYTES:])], request_id)

    def _names(self, copy: Any) -> list[bytes]:
        """The names that a copy adds to its chunk."""
        group = copy.group.to_bytes(GROUP_BYTES, "big")
        return [each[-HASH_BYTES:] + group for each in self._connector.hashes_of(copy)]
