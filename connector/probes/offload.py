"""The OffloadConnector hides nothing: its last match, its plan and its evictions are there to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connector.probes import Evicted, Moved, Planned, Probe, Sign


class OffloadProbe(Probe):
    sees_transfers = True

    def chunk_size(self, connector: Any) -> int | None:
        return connector.chunk_size  # type: ignore[no-any-return]  # the connector is known by name only

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        return connector.last_matched, connector.answered_from_memory

    def keys(self, connector: Any, request: Any) -> tuple[str, ...] | None:
        return connector.last_keys()  # type: ignore[no-any-return]  # the connector is known by name only

    def plans(self, connector: Any, metadata: Any) -> Sequence[Planned]:
        if not (metadata.loads or metadata.stores or metadata.present):
            return ()
        loads = [_planned(copy, is_store=False) for copy in metadata.loads]
        stores = [_planned(copy, is_store=True) for copy in metadata.stores]
        present = [_planned(copy, is_store=True, present=True) for copy in metadata.present]
        return loads + sorted(stores + present, key=lambda plan: plan.start or 0)  # in the order of their tokens

    def signs(self, connector: Any) -> Sequence[Sign]:
        return connector.take_signs()  # type: ignore[no-any-return]  # the connector is known by name only

    def loads(self, connector: Any) -> Sequence[Moved]:
        plan = connector._connector_metadata
        return connector.moved(plan.loads) if plan.loads else ()

    def stores(self, connector: Any) -> Sequence[Moved]:
        plan = connector._connector_metadata
        return connector.moved(plan.stores) if plan.stores else ()

    def evictions(self, connector: Any) -> Sequence[Evicted]:
        return connector.take_evicted()  # type: ignore[no-any-return]  # the connector is known by name only


def _planned(copy: Any, *, is_store: bool, present: bool | None = None) -> Planned:
    return Planned(copy.request_id, is_store, copy.start, copy.count, copy.blocks or None, (copy.key,), None, present)


PROBE = OffloadProbe
