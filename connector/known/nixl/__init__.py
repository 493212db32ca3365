"""vLLM's NIXL connectors."""

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.model.capabilities import Capability

CONNECTOR = KnownConnector(
    __name__,
    classes=("NixlConnector", "NixlPullConnector", "NixlPushConnector"),
    capabilities=frozenset({Capability.HANDS_ON}),
    compared_by_name=True,
)
