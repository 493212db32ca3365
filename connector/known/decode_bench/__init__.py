"""vLLM's DecodeBenchConnector, which fills blocks with noise to measure decoding: it finds every prompt."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(__name__, classes=("DecodeBenchConnector",), other_writers=True)
