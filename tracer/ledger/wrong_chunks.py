"""Chunks of the connectors' stores that a step computed from a load that failed. Pure.

vLLM says after the step which blocks of a load within it have failed. What the step stored by then of a request with such a
block is wrong from that block on, though nothing is wrong with its key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtrail.tracer.events.events import Alloc, LoadError, Lookup, RequestEnd, StorePlan
from kvtrail.tracer.ledger.block_table import BlockTable

MOST_STORES = 1000
"""The latest stores of an engine that are remembered: those of a step, or of two where it is scheduled ahead."""
MOST_ENDED = 64
"""The latest requests with an error: `kv_load_failure_policy=fail` ends a request before it says which blocks failed."""
MOST_CHUNKS = 10_000
"""Wrong chunks that are remembered."""
ERROR = "error"
"""The outcome of a request that vLLM ended since its load failed."""


class WrongChunk(NamedTuple):
    """Who stored a chunk, and the error that came after it."""

    store: StorePlan
    error: LoadError


@dataclass(slots=True)
class WrongChunks:
    """The wrong chunks of one engine's stores.

    Attributes:
        of: by connector and key.
    """

    of: dict[tuple[str, str], WrongChunk] = field(default_factory=dict)
    _loading: dict[int, int] = field(default_factory=dict)
    """By block, the sequence number of the allocation for the latest load within a step that writes it."""
    _stores: deque[StorePlan] = field(default_factory=lambda: deque(maxlen=MOST_STORES))
    _ended: dict[str, BlockTable] = field(default_factory=dict)

    def clear(self) -> None:
        """Events are missing: none of it is certain."""
        self.of.clear()
        self._loading.clear()
        self._stores.clear()
        self._ended.clear()

    def enter_load(self, event: Alloc, lookup: Lookup) -> None:
        """A request is given blocks, to load what the lookup found."""
        end = lookup.computed + event.allocated
        for size, ids in BlockTable(event).sized():
            for block in ids[lookup.computed // size : -(-end // size)]:
                if lookup.is_async:
                    self._loading.pop(block, None)
                else:
                    self._loading[block] = event.sequence

    def enter_store(self, event: StorePlan) -> None:
        """Chunks are stored. A store with a number may copy later, when the blocks have been computed again."""
        if event.chunk_present:
            return
        if self.of:
            self.forget(event.connector_id, *(event.chunk_keys or ()))
        if self._loading and event.transfer_id is None and event.start is not None and event.chunk_size:
            self._stores.append(event)

    def enter_end(self, event: RequestEnd, table: BlockTable | None) -> None:
        """A request that held these blocks has ended."""
        if event.outcome == ERROR and table is not None:
            if len(self._ended) >= MOST_ENDED:
                self._ended.pop(next(iter(self._ended)))
            self._ended[event.request or ""] = table

    def enter_load_error(self, event: LoadError, tables: Mapping[str, BlockTable]) -> None:
        """Loads have failed: what was stored since they began of a request with such a block, from it on, is wrong."""
        failed = {block: self._loading.pop(block) for block in event.blocks_ids if block in self._loading}
        for store in self._stores if failed else ():
            table = tables.get(store.request or "") or self._ended.get(store.request or "")
            from_token = None if table is None else _first_wrong(table, failed, store)
            if from_token is None or len(self.of) >= MOST_CHUNKS:
                continue
            for number, key in enumerate(store.chunk_keys or (), start=1):
                if (store.start or 0) + min(number * (store.chunk_size or 0), store.count) > from_token:
                    self.of[store.connector_id, key] = WrongChunk(store, event)

    def forget(self, connector_id: str, *keys: str) -> None:
        """These chunks are stored again, or have left the store."""
        for key in keys:
            self.of.pop((connector_id, key), None)

    def enter_reset(self, connector_id: str) -> None:
        """A connector's store is empty."""
        self.of = {chunk: why for chunk, why in self.of.items() if chunk[0] != connector_id}


def _first_wrong(table: BlockTable, failed: Mapping[int, int], store: StorePlan) -> int | None:
    """The first token that a request has in a block with a failed load which was allocated for before the store; None if it
    has none."""
    places = (
        number * size
        for size, ids in table.sized()
        for number, block in enumerate(ids)
        if failed.get(block, store.sequence) < store.sequence
    )
    return min(places, default=None)
