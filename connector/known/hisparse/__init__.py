"""vLLM's HiSparse connector."""

from kvtrail.connector.known import KnownConnector

CONNECTOR = KnownConnector(__name__, classes=("HiSparseConnector",), compared_by_name=True)
