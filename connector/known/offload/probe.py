"""The OffloadConnector: its last match, its plans, its evictions, and the contents of its store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from kvtrail.connector.known.offload.contents import Contents
from kvtrail.connector.known.probe import Evicted, Moved, Planned, Probe, Seen, StoreContents


class OffloadProbe(Probe):
    load_call, store_call = "load_chunks", "store_chunks"  # not called in a step that copies nothing

    def __init__(self) -> None:
        self._contents: Contents | None = None
        """The store's contents, with several KV cache groups."""

    def made(self, connector: Any) -> None:
        if connector.has_groups and connector.role.name == "SCHEDULER":
            self._contents = Contents(connector)

    def contents(self, connector: Any) -> StoreContents | None:
        return self._contents

    def chunk_size(self, connector: Any) -> int | None:
        return connector.chunk_size  # type: ignore[no-any-return]  # only the connector's name is known

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        return connector.last_matched, connector.answered_from_memory

    def keys(self, connector: Any, request: Any) -> tuple[str, ...] | None:
        return connector._scheduler.last_keys()  # type: ignore[no-any-return]  # only the connector's name is known

    def held_keys(self, connector: Any) -> Sequence[Any] | None:
        return connector._scheduler.held_keys()  # type: ignore[no-any-return]  # only the connector's name is known

    def still_held(self, connector: Any, keys: Sequence[Any]) -> tuple[str, ...]:
        return connector._scheduler.still_held(keys)  # type: ignore[no-any-return]  # only the connector's name is known

    def held_bytes(self, connector: Any) -> int | None:
        is_known = connector.role.name == "SCHEDULER"  # it knows the bytes on each worker, and a worker does not
        return connector._scheduler.held_bytes() if is_known else None

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        if not (metadata.loads or metadata.stores or metadata.present or metadata.refused):
            return None  # in a step, a chunk is evicted only to make room for a store
        evicted = [Evicted(*each) for each in connector.take_evicted()]
        if self._contents is not None:
            self._contents.planned(metadata, evicted)
        loads = [_planned(connector, copies) for copies in _chunks(metadata.loads)]
        stores = [_planned(connector, copies) for copies in _chunks(metadata.stores)]
        if metadata.present:
            stores += [_planned(connector, copies, present=True) for copies in _chunks(metadata.present)]
        stores += [Planned(request_id, start, 0, None) for request_id, start in metadata.refused]
        if len(stores) > 1:
            stores.sort(key=lambda plan: plan.start or 0)  # in the order of their tokens
        return Seen(loads, stores, evicted)

    def forgotten(self, connector: Any) -> Sequence[Evicted]:
        evicted = [Evicted(*each) for each in connector.take_evicted()]
        if self._contents is not None:
            self._contents.left(evicted)
        return evicted

    def loads(self, connector: Any) -> Sequence[Moved]:
        return _moved(connector, connector._connector_metadata.loads)

    def stores(self, connector: Any) -> Sequence[Moved]:
        return _moved(connector, connector._connector_metadata.to_store())


def _chunks(copies: Sequence[Any]) -> list[list[Any]]:
    """The copies, grouped by chunk. The copies of a chunk are consecutive, one for each KV cache group."""
    return [list(some) for _, some in groupby(copies, lambda copy: (copy.request_id, copy.start))]


def _planned(connector: Any, copies: Sequence[Any], present: bool | None = None) -> Planned:
    """The plan of a chunk. It names no blocks if the chunk is in the store already."""
    first = copies[0]
    groups = connector.in_groups(copies)
    blocks = () if present else tuple(block for some, _ in groups for block in some)
    by_group, starts = None, None
    if blocks and len(groups) > 1:
        by_group, starts = tuple(len(some) for some, _ in groups), tuple(start for _, start in groups)
    return Planned(
        first.request_id, first.start, first.count, blocks or None, (first.key,), None, present, by_group, starts
    )


def _moved(connector: Any, copies: Sequence[Any]) -> list[Moved]:
    return [
        Moved(
            some[0].request_id,
            some[0].start,
            some[0].count,
            sum(len(copy.blocks) for copy in some),
            sum(map(connector.bytes_of, some)),
        )
        for some in _chunks(copies)
    ]


PROBE = OffloadProbe
