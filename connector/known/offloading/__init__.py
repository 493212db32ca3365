"""vLLM's native OffloadingConnector."""

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability

CONNECTOR = KnownConnector(
    __name__,
    classes=("OffloadingConnector",),
    capabilities=frozenset({Capability.EXCLUSIVE_TRANSFERS, Capability.TELLS_CHUNKS, Capability.EVICTS_ANY}),
    check_settings={"cpu_bytes_to_use": (4_000_000, 50_000_000)},
)
