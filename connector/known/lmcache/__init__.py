"""LMCache in vLLM's process."""

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability

CONNECTOR = KnownConnector(
    __name__,
    classes=("LMCacheConnectorV1", "LMCacheConnectorV1Dynamic"),
    capabilities=frozenset({Capability.REPORTS_ALL_STORES}),
    check_settings={"lmcache.chunk_size": (64, 128, 256)},
)
