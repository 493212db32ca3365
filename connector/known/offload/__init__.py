"""kvtrail's own OffloadConnector."""

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability

CONNECTOR = KnownConnector(
    __name__,
    classes=("OffloadConnector", "UntracedOffloadConnector"),
    capabilities=frozenset({Capability.REPORTS_ALL_STORES, Capability.TELLS_CHUNKS, Capability.TELLS_GROUPS}),
    check_settings={
        "chunk_size": (32, 64, 64, 128, 256),
        "cpu_bytes_to_use": (4_000_000, 50_000_000, 50_000_000),
        "load_async": (None, True),  # by default it depends on the model
    },
    settings_when_full={"cpu_bytes_to_use": (300_000, 600_000, 1_200_000)},
)
