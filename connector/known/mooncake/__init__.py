"""vLLM's Mooncake connectors."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(__name__, classes=("MooncakeConnector", "MooncakeStoreConnector"), compared_by_name=True)
