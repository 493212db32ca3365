"""What the causes of misses cost: recording, taking in and storing block hashes and the changes of vLLM's own prefix cache.

For each number of requests at a time, in turns in one process: CPU of the scheduler's thread for a step of the bare
scheduler, at level `detailed` with block hashes and without, and untraced with vLLM's own KV events on and off (nobody is
subscribed to them). Then a sidecar takes in what the two have recorded of the same requests, in turns again: its CPU, and
the bytes of its file.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import rounds
from throughput import SIDES, STEPS, Busy, MeasuringExporter

TRACED = {"hashes": {}, "none": {"block_hashes": "off"}}
UNTRACED = ("KV events", "untraced")
PAIRS = (("hashes", "none"),)


class KeepingExporter(MeasuringExporter):
    """Keeps the payloads of what is measured."""

    payloads: list[bytes]

    def measure(self) -> None:
        made = list(self.encoder.requests(self.waiting, 512))
        self.events += len(self.waiting)
        self.bytes += sum(map(len, made))
        self.waiting.clear()
        vars(self).setdefault("payloads", []).extend(made)


def record(folder: Path, count: int, at_a_time: int) -> dict[str, list[bytes]]:
    """Run the sides in turns of `STEPS`, print the ratios, and return what each of the traced ones recorded, from its first
    step on."""
    from kvtrail.connector.recording.recorder import exporting_to, recorders

    exporters: list[KeepingExporter] = []

    def exporter() -> KeepingExporter:
        exporters.append(KeepingExporter())
        return exporters[-1]

    with exporting_to(exporter):
        sides = {name: Busy(folder, at_a_time, SIDES[0], "detailed", 0, **more) for name, more in TRACED.items()}
        sides |= {name: Busy(folder, at_a_time, SIDES[1], "basic") for name in UNTRACED}
        sides["KV events"].pool.enable_kv_cache_events = True
        spent = {name: list[float]() for name in sides}
        requests = dict.fromkeys(sides, 0)
        dice, order = random.Random(0), list(sides)
        gc.disable()
        for number in range(-8, count):  # until those that began at once have ended
            dice.shuffle(order)
            for name in order:
                gc.collect(1)
                before, started = sides[name].begun, time.thread_time()
                sides[name].steps(STEPS)
                if number >= 0:
                    spent[name].append((time.thread_time() - started) / STEPS * 1e6)
                    requests[name] += sides[name].begun - before
                for recorder in recorders():
                    recorder.flush()
                for each in exporters:
                    each.measure()
            if number == -1:
                for each in exporters:
                    each.events = each.bytes = 0
        gc.enable()
    for one, other in (*PAIRS, UNTRACED, ("hashes", "untraced")):
        more = statistics.median([a - b for a, b in zip(spent[one], spent[other], strict=True)])
        rounds.print_ratio(f"  recording, {more:+.1f} us", spent[one], spent[other], "us/step", (one, other))
    kept = {name: list(each.payloads) for name, each in zip(TRACED, exporters, strict=True)}
    for name, each in zip(TRACED, exporters, strict=True):
        steps = count * STEPS
        print(
            f"  {name}: {each.events / steps:.2f} events and {each.bytes / steps:,.0f} bytes a step,"
            f" {each.bytes / requests[name]:,.0f} bytes a request"
        )
    executed = {name: side.instructions(STEPS) for name, side in sides.items()}
    print("  instructions of CPython's interpreter: " + ", ".join(f"{name} {n:,.0f}" for name, n in executed.items()))
    return kept


def take_in(recorded: Mapping[str, Sequence[bytes]], count: int) -> None:
    """Have a new sidecar take in what each side has recorded, in turns, and print the ratios."""
    spent = {name: list[float]() for name in recorded}
    size = dict.fromkeys(recorded, 0)
    spans = dict.fromkeys(recorded, 0)
    for number in range(count + 1):
        for name in sorted(recorded, reverse=number % 2 == 1):
            took_s, size[name], spans[name], requests = ingested(recorded[name])
            if number:  # the first round warms up
                spent[name].append(took_s / requests * 1e6)
    for one, other in PAIRS:
        more = statistics.median([a - b for a, b in zip(spent[one], spent[other], strict=True)])
        rounds.print_ratio(f"  taking in, {more:+.0f} us", spent[one], spent[other], "us/request", (one, other))
    for name in recorded:
        print(
            f"  {name}: {spans[name] / requests:.1f} spans a request,"
            f" {statistics.median(spent[name]) * requests / spans[name]:.1f} us a span; in the store"
            f" {size[name] / requests:,.0f} bytes a request, {size[name] / spans[name]:,.0f} a span"
        )


def ingested(payloads: Sequence[bytes]) -> tuple[float, int, int, int]:
    """Seconds of processor, bytes of the store, spans and requests of a sidecar that takes these in."""
    from kvtrail.tracer.serve.metrics.metrics import Metrics
    from kvtrail.tracer.serve.receive.pipeline import Pipeline
    from kvtrail.tracer.store.sqlite.store import SqliteWriter

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.db"
        pipeline = Pipeline(SqliteWriter(file), Metrics())
        gc.collect()
        began = time.process_time()
        for payload in payloads:
            pipeline.ingest(payload, transport="grpc")
        took_s = time.process_time() - began
        spans, requests = pipeline.spans_stored, len(pipeline.detector.accounts)
        pipeline.close()
        return took_s, file.stat().st_size, spans, requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="of the scheduler, of thirty steps each")
    parser.add_argument("--takings", type=int, default=11, help="rounds of the sidecar")
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[16, 64, 256])
    arguments = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        for at_a_time in arguments.at_a_time:
            print(f"{at_a_time} requests at a time")
            take_in(record(Path(folder), arguments.rounds, at_a_time), arguments.takings)


if __name__ == "__main__":
    main()
