"""A probe to copy from: it shows kvtrail what `my_connector.MyConnector` decides, by reading the connector's own state.

A probe reads and never writes. `MyProbedConnector` is the connector with the probe:

    kvtrail check my_probe:MyProbedConnector
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from my_connector import MyConnector

from kvtrail.connector.known.probe import Evicted, Planned, Probe, Seen


def name(key: bytes) -> str:
    """The name of a chunk in spans: the last 8 bytes of vLLM's block hash, in hex. Requests' hashes are recorded alike."""
    return key[-8:].hex()


class MyProbe(Probe):
    def chunk_size(self, connector: Any) -> int:
        return connector.block_size  # type: ignore[no-any-return]

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """The matched tokens count from token 0 of the request: what the store holds, not what was answered. None means that
        the probe cannot know. The second value is whether the answer was remembered; this connector always looks."""
        return len(self._held_prefix(connector, request)) * connector.block_size, False

    def keys(self, connector: Any, request: Any) -> tuple[str, ...]:
        """The chunks that the lookup claims, from token 0 on. Leave this method out if others write to the store: kvtrail
        takes a key that it has not seen stored for a fault."""
        return tuple(map(name, self._held_prefix(connector, request)))

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        """What `build_connector_meta` has just planned. `start` is the first token of a copy, counted from token 0 of the
        request. Return None in a step that plans nothing."""
        if not (metadata.loads or metadata.stores or metadata.drops):
            return None
        size = connector.block_size
        loads = [
            Planned(
                request_id, connector.tracked[request_id].computed, len(copies) * size,
                tuple(block for _, block in copies), tuple(name(key) for key, _ in copies),
            )
            for request_id, copies in metadata.loads.items()
        ]  # fmt: skip
        stores = []
        for key, block in metadata.stores.items():
            request_id, start = self._place(connector, block)
            stores.append(Planned(request_id, start, size, (block,), (name(key),)))
        # Not used here: a store of 0 tokens, `Planned(request_id, start, 0, None)`, says that the store had no room from
        # `start` on; `present=True` marks a chunk that the store already holds and that is not copied. A chunk whose store
        # is still open is present, too.
        return Seen(loads, stores, [Evicted(name(key), size, None) for key in metadata.drops])

    def _held_prefix(self, connector: Any, request: Any) -> Sequence[bytes]:
        """The keys of a request's first blocks that the store holds, without the block of the last token."""
        keys: Sequence[bytes] = request.block_hashes[: (request.num_tokens - 1) // connector.block_size]
        return keys[: next((n for n, key in enumerate(keys) if key not in connector.held), len(keys))]

    def _place(self, connector: Any, block: int) -> tuple[str, int]:
        """The request that stores a block, and the block's first token."""
        return next(
            (request_id, tracked.table.index(block) * connector.block_size)
            for request_id, tracked in connector.tracked.items()
            if block in tracked.table
        )


class MyProbedConnector(MyConnector):
    kvtrail_probe = MyProbe
