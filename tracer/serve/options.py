"""What `kvtrail serve` can be told: apart from the servers, so that the command line knows it without loading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtrail.tracer.detect.ledger import MOST_REQUESTS


@dataclass(frozen=True, slots=True)
class Options:
    """What `kvtrail serve` can be told.

    Attributes:
        host: address to listen on.
        grpc_port: OTLP over gRPC.
        http_port: OTLP over HTTP, api, metrics and `/docs`.
        store: SQLite file; created if absent.
        trace_file: also append all spans here, as OTLP JSON Lines.
        retain_hours: spans and requests older than this are dropped; findings stay.
        max_requests: accounts held in memory; beyond it the longest finished leave, then the longest untouched.
        nice: by how much the process lowers its priority, 0 to 19: an engine on the same cores goes first.
    """

    host: str = "127.0.0.1"
    grpc_port: int = 4317
    http_port: int = 4318
    store: Path = Path("kvtrail.db")
    trace_file: Path | None = None
    retain_hours: float = 72.0
    max_requests: int = MOST_REQUESTS
    nice: int = 5
