"""vLLM's MoRIIO connector."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(__name__, classes=("MoRIIOConnector",), compared_by_name=True)
