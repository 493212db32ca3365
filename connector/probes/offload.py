"""The OffloadConnector hides nothing: its last match, its plan and its evictions are there to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connector.probes import Evicted, Moved, Probe


class OffloadProbe(Probe):
    sees_transfers = True

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        return connector.last_matched, connector.answered_from_memory

    def loads(self, connector: Any) -> Sequence[Moved]:
        plan = connector._connector_metadata
        return connector.moved(plan.loads) if plan.loads else ()

    def stores(self, connector: Any) -> Sequence[Moved]:
        plan = connector._connector_metadata
        return connector.moved(plan.stores) if plan.stores else ()

    def evictions(self, connector: Any) -> Sequence[Evicted]:
        return connector.take_evicted()  # type: ignore[no-any-return]  # the connector is known by name only


PROBE = OffloadProbe
