"""vLLM's SimpleCPUOffloadConnector."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(
    __name__,
    classes=("SimpleCPUOffloadConnector",),
    check_settings={"cpu_bytes_to_use": (4_000_000, 50_000_000)},
)
