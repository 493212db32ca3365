"""What engines cost a sidecar, each with a recorder and a request: the processor time of the answers of `/api/status` and of
`/metrics`, of the tidying after they came, and of that of a later second.

    python benchmarks/many_engines.py                    2,000 engines compared with a quarter of them, for each engine
    python benchmarks/many_engines.py --against OTHER    this checkout, compared with another one
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rounds
from fastapi.testclient import TestClient

from kvtrail.connector.recording.encoder import Encoder, attribute
from kvtrail.connector.recording.ring import EventTuple
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

ROOT = Path(__file__).parents[1]
MANY, FEWER = 2_000, 500
TOKENS = 50_000
"""Of a prompt: enough for an engine to be compared with the others."""
UNIT = "us of a processor per engine"
WHATS = {"status": "/api/status", "metrics": "/metrics", "arrival": "the first tidying", "tidying": "a later one"}


def measure(what: str, engines: int) -> None:
    """Print the microseconds of a processor that one of them costs with so many engines."""
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        pipeline = Pipeline(SqliteWriter(path), Metrics())
        client = TestClient(application(pipeline, SqliteReader(path), pipeline.metrics))
        for number in range(engines):
            pipeline.ingest(of_engine(number), transport="grpc")
        arrival_s = _took_s(pipeline.tidy)
        if what == "arrival":
            took_s = arrival_s
        elif what == "tidying":
            took_s = _took_s(pipeline.tidy)
        else:
            client.get(WHATS[what])  # what is made once
            took_s = _took_s(lambda: client.get(WHATS[what]).raise_for_status())
        print(took_s / engines * 1e6)
        pipeline.close()


def of_engine(number: int) -> bytes:
    """What the recorder of a new engine sends: a heartbeat, and a request that finds a tenth of its prompt."""
    resource: dict[str, Any] = {
        semconv.ENGINE_ID.key: f"engine-{number}",
        semconv.RECORDER_ID.key: f"r-{number}",
        "service.name": "vllm",
    }
    resource |= {semconv.BLOCK_SIZE.key: 16, semconv.MODEL.key: "m"}
    encoder = Encoder(resource, 0, 0)
    source = attribute(semconv.CONNECTOR.key, "Any") + attribute(semconv.ROLE.key, "scheduler")
    ids = number.to_bytes(16) + number.to_bytes(8)
    nobody, request = (ids, b"", "", True), (ids, b"", f"request-{number}", True)
    reported: list[tuple[Kind, dict[str, Any]]] = [
        (Kind.HEARTBEAT, {"recorder_dropped": 0, "recorder_closed": False, "scheduler_step": 1}),
        (Kind.REQUEST_START, {"total": TOKENS}),
        (Kind.LOOKUP, {"total": TOKENS, "computed": 0, "matched": TOKENS // 10, "returned": TOKENS // 10}),
        (Kind.ALLOC, {"total": TOKENS, "allocated": TOKENS // 10}),
        (Kind.SCHEDULE, {"computed": TOKENS // 10, "scheduled": TOKENS - TOKENS // 10}),
    ]
    now_ns = time.time_ns()
    events: list[EventTuple] = [
        (kind.value, source, request if at else nobody, at, max(0, at - 1), 0, now_ns, now_ns, None,
         tuple(known.get(each.field) for each in FIELDS[kind]))
        for at, (kind, known) in enumerate(reported)
    ]  # fmt: skip
    return b"".join(encoder.requests(events, len(events)))


def _took_s(function: Callable[[], object]) -> float:
    began_s = time.process_time()
    function()
    return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("--what", choices=WHATS, action="append", help="only this; may be given several times")
    parser.add_argument("--engines", type=int, help="only print the time for each of so many engines")
    options = parser.parse_args()
    if options.engines is not None:
        measure(next(iter(options.what or WHATS)), options.engines)
        return
    for what in options.what or WHATS:
        many = ("--what", what, "--engines", MANY)
        if options.against is None:
            sides = {
                f"{MANY:,} engines": (ROOT, many),
                f"{FEWER:,} engines": (ROOT, ("--what", what, "--engines", FEWER)),
            }
        else:
            sides = {"this": (ROOT, many), "the other": (options.against, many)}
        rounds.compare(WHATS[what], __file__, sides, options.rounds, UNIT)


if __name__ == "__main__":
    main()
