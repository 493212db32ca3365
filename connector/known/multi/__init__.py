"""vLLM's MultiConnector, which asks several connectors in order."""

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability

CONNECTOR = KnownConnector(
    __name__,
    classes=("MultiConnector",),
    capabilities=frozenset({Capability.ANSWERS_FOR_CHILDREN}),
    compared_by_name=True,
    children="_connectors",
    check_children=("OffloadConnector", "OffloadingConnector"),
)
