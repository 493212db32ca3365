"""Recording every request where OpenTelemetry's sampler chooses one in a hundred: `unsampled: record` with `drop`.

Both sides run on the bare scheduler, in turns of about 50 ms. Measured are the CPU of the scheduler's thread for a step, and,
for each side, how many events and bytes a step brings and what encoding them takes.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rounds import print_ratio

from kvtrail.connector.demo.workload import shared_prefixes
from kvtrail.connector.recording import recorder
from kvtrail.connector.recording.encoder import Encoder
from kvtrail.connector.recording.exporter import Exporter
from kvtrail.connector.recording.ring import EventTuple

RATIO = "0.01"
SIDES = ("record", "drop")
TURNS = 10
"""Turns in a round."""


class Encoding(Exporter):
    """Encodes as the export process does, and drops the bytes. It counts events, bytes and seconds of CPU."""

    def __init__(self) -> None:
        super().__init__("nowhere")
        self.is_kvtrail = True
        self.events = self.bytes = 0
        self.cpu_s = 0.0

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        self._encoder = Encoder(resource, span_id_base, base_ns)

    def send(self, events: Sequence[EventTuple]) -> bool:
        started = time.thread_time()
        self.bytes += sum(map(len, self._encoder.requests(events, 512)))
        self.cpu_s += time.thread_time() - started
        self.events += len(events)
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help=f"rounds of {TURNS} turns")
    arguments = parser.parse_args()
    os.environ["OTEL_TRACES_SAMPLER"], os.environ["OTEL_TRACES_SAMPLER_ARG"] = "traceidratio", RATIO
    made: list[Encoding] = []

    def one_more() -> Encoding:
        made.append(Encoding())
        return made[-1]

    with tempfile.TemporaryDirectory() as folder, recorder.exporting_to(one_more):
        compare(Path(folder), arguments.rounds, made)


def compare(folder: Path, rounds: int, made: Sequence[Encoding]) -> None:
    """Run both sides and print the ratios. `made` are the sides' exporters, in the order of `SIDES`."""
    from kvtrail.connector.simulate.bare_scheduler import BareScheduler

    schedulers = {}
    for side in SIDES:
        extra = {"kvtrail": {"unsampled": side}}
        schedulers[side] = BareScheduler(
            folder / "model", {"kv_connector": "OffloadConnector", "kv_connector_extra_config": extra}
        )
    a_step: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds * TURNS + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            scheduler = schedulers[side]
            gc.collect(1)
            before, started = scheduler.steps, time.thread_time()
            for job in shared_prefixes(seed=number):
                scheduler.add(f"{number}-{job.id}", list(job.prompt), job.max_tokens)
            scheduler.run()
            spent = time.thread_time() - started
            for each in recorder.recorders():
                each.flush()
            scheduler.scheduler.reset_prefix_cache()
            if number:  # the first turn warms up
                a_step[side].append(spent / (scheduler.steps - before) * 1e6)
    print_ratio("the scheduler's thread, a step", a_step["record"], a_step["drop"], "us", SIDES)
    for side, exporter in zip(SIDES, made, strict=True):
        steps = schedulers[side].steps
        print(
            f"{side}: {exporter.events / steps:.2f} events, {exporter.bytes / steps:,.0f} bytes and"
            f" {exporter.cpu_s / steps * 1e6:.1f} us of encoding for a step"
        )


if __name__ == "__main__":
    main()
