"""The sidecar's processor time for an event, from the request's bytes to its acknowledgement, without the servers.

The history is that of `read.py`. It arrives in requests with few or many events, as slow and fast engines send them.

    python benchmarks/ingest.py                    few events a request, compared with many
    python benchmarks/ingest.py --against OTHER    this checkout, compared with another one
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import rounds
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.serve.metrics import Metrics
from kvtrail.tracer.serve.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteWriter

ROOT = Path(__file__).parents[1]
FEW, MANY = 16, 512
UNIT = "us of a processor per event"


def ingest(history: Path, size: int) -> None:
    """Print the microseconds that an event takes in requests of `size` events."""
    logging.disable()
    payloads = list(requests(history, size))
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(SqliteWriter(Path(folder) / "bench.db"), Metrics())
        began = time.process_time()
        for payload in payloads:
            pipeline.ingest(payload, transport="grpc")
        took_s = time.process_time() - began
        print(took_s / pipeline.spans_stored * 1e6)
        pipeline.close()


def requests(history: Path, size: int) -> Iterator[bytes]:
    """The history's spans in requests of `size` spans."""
    for line in history.open():
        whole = ExportTraceServiceRequest.FromString(otlp_json.to_protobuf(json.loads(line)))
        (resource,) = whole.resource_spans
        (scope,) = resource.scope_spans
        spans = list(scope.spans)
        for first in range(0, len(spans), size):
            del scope.spans[:]
            scope.spans.extend(spans[first : first + size])
            yield whole.SerializeToString()


def compare(history: Path, count: int, other: Path | None) -> None:
    """Measure few events a request with many, or this checkout with another one."""
    few, many = (f"{size} a request" for size in (FEW, MANY))
    of_few, of_many = (("--history", history, "--size", size) for size in (FEW, MANY))
    if other is None:
        rounds.compare("ingesting", __file__, {few: (ROOT, of_few), many: (ROOT, of_many)}, count, UNIT)
        return
    for what, arguments in ((few, of_few), (many, of_many)):
        sides = {"this": (ROOT, arguments), "the other": (other, arguments)}
        rounds.compare(f"ingesting, {what}", __file__, sides, count, UNIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("--history", type=Path, help="a trace file of one recorder, instead of a new one")
    parser.add_argument("--size", type=int, help="only print the time of an event in requests of this size")
    options = parser.parse_args()
    if options.size is not None:
        ingest(options.history, options.size)
        return
    with tempfile.TemporaryDirectory() as folder:
        history = options.history or Path(folder) / "history.jsonl"
        if options.history is None:
            from read import record  # needs vLLM, which the measured processes do not

            record(history, "basic", 500)
        compare(history, options.rounds, options.against)


if __name__ == "__main__":
    main()
