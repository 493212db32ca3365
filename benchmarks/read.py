"""Reading and judging a recorded history: events a second, by the codec and by Google's JSON parser, and the memory it takes.

The history is real: vLLM's bare scheduler with the traced OffloadConnector, chunked prefill, preemptions, aborts and resets;
as many spans in a line as a recorder sends. Wall time is what one waits; CPU time is what a busy machine lengthens less.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bare_scheduler import storm
from memory import MemoryTransport
from rounds import print_ratio
from wire import to_json_line

from kvtrail.connector.recording import exporter, recorder
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.ingest import decode, otlp_json, protobuf
from kvtrail.tracer.ingest.trace_file import TraceReader

ROOT = Path(__file__).parents[1]
HEAD_LINES = 20
"""Lines that both read: the whole file would take Google's parser minutes."""
STEPS_A_FLUSH = 2000
MEMORY = """
import sys
def most_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
sys.path.insert(0, {root!r})
from pathlib import Path
from kvtrail.tracer.history.audit import audit
before = most_kib()
events = audit([Path(path) for path in sys.argv[1:]]).events if sys.argv[1:] else 0
after = most_kib()
print(events, before // 1024, after // 1024)
"""


class Patient(BareScheduler):
    """One that waits for its recorder now and then: without a model it outruns any."""

    def step(self, observe: Callable[[Any], None] = lambda output: None) -> int:
        if self.steps % STEPS_A_FLUSH == 0:
            for each in recorder.recorders():
                each.flush(60)
        return super().step(observe)


def record(path: Path, level: str, requests: int) -> None:
    """Write the history of a random workload; nothing of it is dropped."""
    memory = MemoryTransport()
    exporter.from_environment = lambda: exporter.InProcessExporter(memory)
    extra = {"cpu_bytes_to_use": 8_000_000, "chunk_size": 64, "kvtrail": {"level": level}}
    connector = {"kv_connector": "OffloadConnector", "kv_connector_extra_config": extra}
    bare = Patient(Path(tempfile.mkdtemp()), connector, seed=1)
    storm(bare, seed=1, requests=requests)
    for each in recorder.recorders():
        assert each.flush(60)
        assert each.dropped == 0
        each.close()
    recorder._recorders.clear()
    path.write_text("".join(f"{to_json_line(payload)}\n" for payload in memory.payloads))


def by_google(path: Path, *, judged: bool) -> int:
    """By way of Google's JSON parser."""
    detector, seen = Detector(), set()
    count = 0
    for line in path.open("rb"):
        for span in protobuf.spans(otlp_json.to_protobuf(json.loads(line))):
            seen.add((span.trace_id, span.span_id))
            event = decode.from_span(span)
            if event is not None:
                count += 1
                if judged:
                    detector.feed([event])
    detector.settle()
    return count


def by_codec(path: Path, *, judged: bool) -> int:
    if judged:
        return audit([path]).events
    return sum(len(batch.events) for batch in TraceReader(path).decoded())


def timed(work: Callable[..., int], path: Path, *, judged: bool) -> tuple[int, float, float]:
    """The events, and how many a second by the clock and by the processor's time."""
    wall, cpu = time.perf_counter(), time.process_time()
    events = work(path, judged=judged)
    return events, events / (time.perf_counter() - wall), events / (time.process_time() - cpu)


def compare(path: Path, level: str, rounds: int) -> None:
    head = path.with_suffix(".head")
    with path.open() as lines:
        head.write_text("".join(line for line, _ in zip(lines, range(HEAD_LINES), strict=False)))
    for judged in (False, True):
        what = f"{level}, {'read and judged' if judged else 'read'}"
        ours, theirs, wall, cpu = [], [], [], []
        for _ in range(rounds):
            ours.append(timed(by_codec, head, judged=judged)[2])
            theirs.append(timed(by_google, head, judged=judged)[2])
            events, by_clock, by_processor = timed(by_codec, path, judged=judged)
            wall.append(by_clock)
            cpu.append(by_processor)
        print_ratio(f"{what}, {HEAD_LINES} lines, CPU time", ours, theirs, "events/s", ("codec", "Google"))
        for clock, rates in (("CPU", cpu), ("wall", wall)):
            median = statistics.median(rates)
            print(
                f"  the whole file, {events:,} events, {clock} time: {median:,.0f} events/s ({min(rates):,.0f} to"
                f" {max(rates):,.0f}, {rounds} rounds), {1e6 / median:.2f} us an event"
            )


def memory(*paths: Path) -> None:
    """The most memory that an audit takes, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY.format(root=str(ROOT)), *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    events, before, after = map(int, run.stdout.split())
    size = sum(path.stat().st_size for path in paths) >> 20
    print(
        f"  memory: {events:,} events in {size} MiB took {after - before} MiB beyond the {before} MiB of a bare start"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for level in ("basic", "detailed"):
        with tempfile.TemporaryDirectory() as folder:
            small, large = Path(folder) / "1x.jsonl", Path(folder) / "10x.jsonl"
            record(small, level, arguments.requests)
            gc.collect()
            gc.freeze()  # vLLM's million objects are no part of an audit: its collector need not go through them
            compare(small, level, arguments.rounds)
            memory(small)
            record(large, level, 10 * arguments.requests)
            memory(large)


if __name__ == "__main__":
    main()
