"""What each version's recorders sent, as bytes, and what the sidecar makes of it.

`versions/<version>.otlp` holds OTLP's requests, each after its length, as the Collector writes them with `format: proto`, and
`versions/<version>.json` the figures that the sidecar of that version came to.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

VERSIONS = Path(__file__).parent / "versions"
AS_SENT = ".otlp"
_LENGTH = 4


def joined(payloads: Sequence[bytes]) -> bytes:
    """The content of a file with these requests."""
    return b"".join(len(payload).to_bytes(_LENGTH, "big") + payload for payload in payloads)


def split_step_spans(content: bytes) -> list[bytes]:
    """The requests of a file."""
    payloads = []
    while content:
        end = _LENGTH + int.from_bytes(content[:_LENGTH], "big")
        payloads.append(content[_LENGTH:end])
        content = content[end:]
    return payloads


def figures(path: Path) -> dict[str, Any]:
    """What an audit of the file says, and a sidecar that gets its requests one by one."""
    result = audit([path])
    metrics = Metrics()
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(SqliteWriter(Path(folder) / "s.db"), metrics, grace_ns=0)
        for payload in split_step_spans(path.read_bytes()):
            pipeline.ingest(payload, transport="grpc")
            pipeline.tidy()
        reader = SqliteReader(Path(folder) / "s.db")
        totals, requests = reader.totals(), reader.requests()
        live = sorted((finding["rule"], finding["request"]) for finding in reader.findings())
        pipeline.close()
    return {
        "events": result.events,
        "verdicts": {verdict.value: count for verdict, count in sorted(result.verdicts.items())},
        "findings": sorted([finding.rule, finding.request] for finding in result.findings),
        "passed over": dict(sorted((result.unknown_spans + result.unknown_attributes).items())),
        "missing": result.missing,
        "unreadable": len(result.unreadable),
        "sidecar": {
            **totals,
            "verdicts": dict(sorted(Counter(str(request["verdict"]) for request in requests).items())),
            "drift": [list(each) for each in live],
        },
    }
