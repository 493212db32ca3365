"""A probe for the host cache, as its author would write it with docs/connectors.md at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrail.connector.known.probe import Planned, Probe, Seen


class HostCacheProbe(Probe):
    def chunk_size(self, connector: Any) -> int | None:
        return connector.chunk  # type: ignore[no-any-return]

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        return connector.matched(request) * connector.chunk, None

    def keys(self, connector: Any, request: Any) -> tuple[str, ...] | None:
        return tuple(key.hex()[:16] for key in connector.keys(request)[: connector.matched(request)])

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        if not (metadata.loads or metadata.stores):
            return None
        size, block = connector.chunk, connector.block

        def planned(copy: Any) -> Planned:
            return Planned(
                copy.request_id, copy.start, len(copy.blocks) * block, tuple(copy.blocks), (copy.key.hex()[:16],)
            )

        loads, stores = [planned(copy) for copy in metadata.loads], [planned(copy) for copy in metadata.stores]
        assert all(plan.tokens <= size for plan in (*loads, *stores))
        return Seen(loads, stores)

    def temporary(self, connector: Any) -> Mapping[str, int]:
        return {"pins": sum(connector.pins.values()), "tracked requests": len(connector.tracked)}
