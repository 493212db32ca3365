"""The sidecar's processor time for an event, from the request's bytes to its acknowledgement, without the servers.

The history is that of `read.py`. It arrives in requests with few or many events, as slow and fast engines send them.

    python benchmarks/ingest.py                    few events a request, compared with many
    python benchmarks/ingest.py --against OTHER    this checkout, compared with another one
    python benchmarks/ingest.py --long             prompts of 128k new tokens in blocks of 16, level `detailed`, for each of
                                                   them, compared with prompts of an eighth
    python benchmarks/ingest.py --long --against OTHER
    python benchmarks/ingest.py --fleet            the fleet of `load.py`, 512 spans a request and 100: time and disk of a
                                                   span, and what the disk holds
    python benchmarks/ingest.py --fleet --against OTHER
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import rounds
from fleet import Engine
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvtrail.connector.recording.encoder import Encoder, attribute
from kvtrail.connector.recording.ring import EventTuple
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS
from kvtrail.tracer.events.semconv import HASH_BYTES, Kind
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.server import GC_THRESHOLDS
from kvtrail.tracer.store.sqlite.store import SqliteWriter

ROOT = Path(__file__).parents[1]
FEW, BURST, MANY = 16, 100, 512
UNIT = "us of a processor per event"
BLOCK = 16
LONG, SHORTER = 128_000, 16_000
"""Tokens of a prompt."""
REMEMBERED = 500_000
"""Blocks: more than the sidecar remembers with their events."""
MEASURED_TOKENS = 40 * LONG
LONG_UNIT = "ms of a processor per prompt"
FLEET, FLEET_SPANS = 8, 100_000
FOLDED_EVERY = 25_000
"""Spans: about what a full load brings in a second, after which a sidecar folds its log."""
FLEET_UNIT = "us of a processor per span, folded and with the rows of requests"


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


def ingest_long(tokens: int) -> None:
    """Print the milliseconds that a prompt of `tokens` new tokens takes, once the sidecar remembers all it can."""
    logging.disable()
    coming = long_prompts(tokens)
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(SqliteWriter(Path(folder) / "bench.db"), Metrics())
        for payload in islice(coming, REMEMBERED // (tokens // BLOCK)):
            pipeline.ingest(payload, transport="grpc")
        payloads = list(islice(coming, MEASURED_TOKENS // tokens))
        began = time.process_time()
        for payload in payloads:
            pipeline.ingest(payload, transport="grpc")
        print((time.process_time() - began) / len(payloads) * 1e3)
        pipeline.close()


def ingest_fleet(spans: int, size: int, *, shows_disk: bool) -> None:
    """Print the microseconds that a span takes from the bytes of a request of `size` spans to the disk, or the bytes that it
    takes there."""
    logging.disable()
    gc.set_threshold(*GC_THRESHOLDS)  # as `kvtrail serve` does
    engines = [Engine(f"engine-{number}", batch=size) for number in range(FLEET)]
    payloads = [engine.payload() for _ in range(spans // size // FLEET) for engine in engines]
    payloads += [payload for engine in engines for payload in engine.last()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        pipeline = Pipeline(SqliteWriter(path), Metrics())
        began, folded = time.process_time(), 0
        for payload in payloads:
            pipeline.ingest(payload.body, transport="grpc")
            if pipeline.spans_stored - folded > FOLDED_EVERY:
                pipeline.storage.fold()
                folded = pipeline.spans_stored
        pipeline.storage.write_rows()
        pipeline.storage.fold()
        took_s, stored = time.process_time() - began, pipeline.spans_stored
        pipeline.close()
        if shows_disk:
            print_disk(path, stored, sum(len(payload.body) for payload in payloads))
        else:
            print(took_s / stored * 1e6)


def print_disk(path: Path, spans: int, came: int) -> None:
    """Print the bytes of a span in a store that received `came` bytes: each table with its indexes."""
    with sqlite3.connect(path) as db:
        sizes = db.execute(
            "SELECT coalesce(tbl_name, d.name), sum(pgsize) FROM dbstat AS d LEFT JOIN sqlite_schema AS s"
            " ON s.name = d.name WHERE aggregate = TRUE GROUP BY 1 ORDER BY 2 DESC"
        ).fetchall()
    whole = path.stat().st_size / spans
    print(f"a stored span: {whole:.1f} bytes on disk, of {came / spans:.1f} that came ({spans:,} spans)")
    for name, size in sizes:
        if size / spans >= 0.1:
            print(f"  {name}: {size / spans:.1f}")


def long_prompts(tokens: int, *, clock: Callable[[], int] | None = None) -> Iterator[bytes]:
    """What a recorder sends of requests with prompts that nobody had before: their block hashes, and their block tables.
    Their times are those of a clock, nanoseconds from now on; without one, they are a microsecond apart."""
    rng, blocks = random.Random(0), tokens // BLOCK
    resource = {semconv.ENGINE_ID.key: "e", semconv.RECORDER_ID.key: "r", semconv.BLOCK_SIZE.key: BLOCK}
    encoder = Encoder(resource, 0, time.time_ns())
    source = attribute(semconv.CONNECTOR.key, "Any") + attribute(semconv.ROLE.key, "scheduler")
    for number in count():
        identity = (number.to_bytes(16) + number.to_bytes(8), b"", f"long-{number}", True)
        first = rng.randrange(10_000)
        reported: dict[Kind, dict[str, Any]] = {
            Kind.REQUEST_START: {"total": tokens, "block_hashes": rng.randbytes(HASH_BYTES * blocks)},
            Kind.LOOKUP: {"total": tokens, "computed": 0, "matched": 0, "returned": 0},
            Kind.ALLOC: {"total": tokens, "allocated": 0, "blocks_ids": tuple(range(first, first + blocks))},
            Kind.SCHEDULE: {"computed": 0, "scheduled": tokens},
            Kind.REQUEST: {"total": tokens + 1, "output": 1, "computed": tokens, "outcome": "finished_stopped"},
        }
        events: list[EventTuple] = []
        for at, (kind, known) in enumerate(reported.items()):
            values = tuple(known.get(each.field) for each in FIELDS[kind])
            sequence = number * len(reported) + at
            at_ns = sequence * 1000 if clock is None else clock()
            events.append((kind.value, source, identity, sequence, at, 0, at_ns, at_ns, None, values))
        yield b"".join(encoder.requests(events, len(events)))  # a request after another one is a request


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


def compare_long(count: int, other: Path | None) -> None:
    """Measure long prompts with shorter ones, or this checkout with another one."""
    if other is None:
        sides = {f"{tokens:,} tokens": (ROOT, ("--tokens", tokens)) for tokens in (LONG, SHORTER)}
    else:
        sides = {"this": (ROOT, ("--tokens", LONG)), "the other": (other, ("--tokens", LONG))}
    rounds.compare("long prompts", __file__, sides, count, LONG_UNIT)


def compare_fleet(count: int, other: Path | None) -> None:
    """Measure the fleet's spans, in a long run and a short one or with another checkout."""
    for size in (MANY, BURST):
        arguments = ("--fleet", "--size", size, "--spans")
        if other is None:
            sides = {f"{spans:,} spans": (ROOT, (*arguments, spans)) for spans in (FLEET_SPANS, FLEET_SPANS // 4)}
        else:
            sides = {"this": (ROOT, (*arguments, FLEET_SPANS)), "the other": (other, (*arguments, FLEET_SPANS))}
        ingest_fleet(FLEET_SPANS, size, shows_disk=True)
        rounds.compare(f"the fleet, {size} a request", __file__, sides, count, FLEET_UNIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("--history", type=Path, help="a trace file of one recorder, instead of a new one")
    parser.add_argument("--size", type=int, help="spans of a request: only print the time of an event in such requests")
    parser.add_argument("--long", action="store_true", help="measure long prompts")
    parser.add_argument("--tokens", type=int, help="only print the time of a prompt of this many tokens")
    parser.add_argument("--fleet", action="store_true", help="measure the fleet of load.py")
    parser.add_argument("--spans", type=int, help="only print the time of a span of the fleet, from this many")
    options = parser.parse_args()
    if options.spans is not None:
        ingest_fleet(options.spans, options.size or MANY, shows_disk=False)
        return
    if options.fleet:
        compare_fleet(options.rounds, options.against)
        return
    if options.size is not None:
        ingest(options.history, options.size)
        return
    if options.tokens is not None:
        ingest_long(options.tokens)
        return
    if options.long:
        compare_long(options.rounds, options.against)
        return
    with tempfile.TemporaryDirectory() as folder:
        history = options.history or Path(folder) / "history.jsonl"
        if options.history is None:
            from read import record  # needs vLLM, which the measured processes do not

            record(history, "basic", 500)
        compare(history, options.rounds, options.against)


if __name__ == "__main__":
    main()
