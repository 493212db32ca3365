"""vLLM's MultiConnector, which asks several connectors one after the other."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(
    __name__,
    classes=("MultiConnector",),
    compared_by_name=True,
    check_children=("OffloadConnector", "OffloadingConnector"),
)
