"""vLLM's MooncakeStoreConnector, a store that many engines share."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(__name__, classes=("MooncakeStoreConnector",), compared_by_name=True)
