"""LMCache in a separate process."""

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability

CONNECTOR = KnownConnector(
    __name__,
    classes=("LMCacheMPConnector", "LMCacheMPConnectorUpstream"),
    capabilities=frozenset({Capability.REPORTS_ALL_STORES}),
    check_settings={"kvtrail.fake": {"chunk_size": (64, 128, 256), "answers_after": (0, 0, 1, 3)}},
)
