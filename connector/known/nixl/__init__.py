"""vLLM's NIXL connectors."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(
    __name__, classes=("NixlConnector", "NixlPullConnector", "NixlPushConnector"), compared_by_name=True
)
