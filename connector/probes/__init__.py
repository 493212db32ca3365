"""What more can be seen inside a known connector, one file each. A connector without a probe is traced all the same; what
only a probe could tell is then absent from its spans."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

_BY_CLASS = {
    "UntracedOffloadConnector": "connector.probes.offload",
    "LMCacheConnectorV1": "connector.probes.lmcache",
    "LMCacheConnectorV1Dynamic": "connector.probes.lmcache",
}
"""The probe's module, by the name of a class among the connector's bases."""


class Moved(NamedTuple):
    """A transfer between KV blocks and the connector's store, in tokens, blocks and bytes."""

    request_id: str
    start: int
    tokens: int
    blocks: int
    bytes: int | None


class Evicted(NamedTuple):
    """A chunk that left the store: its key as short hex, and its size in tokens and bytes."""

    key: str
    tokens: int
    bytes: int


class Probe:
    """Sees nothing. Subclasses read the connector's own state, and must not change it.

    Attributes:
        sees_transfers: whether `loads` and `stores` are worth asking.
    """

    sees_transfers = False

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """After a lookup: the matched prefix in tokens, and whether the answer was remembered; None is 'unknown'."""
        return None, None

    def loads(self, connector: Any) -> Sequence[Moved]:
        """On a worker, after `start_load_kv`: what this step loaded."""
        return ()

    def stores(self, connector: Any) -> Sequence[Moved]:
        """On a worker, after `wait_for_save`: what this step stored."""
        return ()

    def evictions(self, connector: Any) -> Sequence[Evicted]:
        """On the scheduler's side, after `build_connector_meta`: what was evicted in this step."""
        return ()


def probe_for(cls: type) -> Probe:
    """A probe that knows this class, for one connector object; or one that sees nothing."""
    for base in cls.__mro__:
        if module := _BY_CLASS.get(base.__name__):
            probe: Probe = importlib.import_module(module).PROBE()
            return probe
    return Probe()
