"""vLLM's ExampleConnector."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(__name__, classes=("ExampleConnector",))
