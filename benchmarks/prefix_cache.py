"""What block hashes and the changes of vLLM's own prefix cache cost, beside vLLM's own KV events.

CPU of the scheduler's thread for a step of the bare scheduler with so many requests, in turns: level `detailed` with both,
with block hashes alone, and with neither; and untraced, with vLLM's KV events on and off (nobody is subscribed to them).
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
import time
from pathlib import Path

import rounds
from throughput import SIDES, STEPS, Busy, MeasuringExporter

TRACED = {
    "both": {},
    "hashes": {"cache_events": "off"},
    "neither": {"cache_events": "off", "block_hashes": "off"},
}
UNTRACED = ("KV events", "untraced")


def measure(folder: Path, count: int, at_a_time: int) -> None:
    """Run the sides in turns of `STEPS`, and print the ratios."""
    from kvtrail.connector.recording.recorder import exporting_to, recorders

    exporters: list[MeasuringExporter] = []

    def exporter() -> MeasuringExporter:
        exporters.append(MeasuringExporter())
        return exporters[-1]

    with exporting_to(exporter):
        sides = {name: Busy(folder, at_a_time, SIDES[0], "detailed", **more) for name, more in TRACED.items()}
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
    print(f"{at_a_time} requests at a time, us/step")
    for one, other in (("both", "hashes"), ("hashes", "neither"), ("both", "neither"), UNTRACED, ("both", "untraced")):
        more = statistics.median([a - b for a, b in zip(spent[one], spent[other], strict=True)])
        rounds.print_ratio(f"  {more:+.1f} us", spent[one], spent[other], "us/step", (one, other))
    executed = {name: side.instructions(STEPS) for name, side in sides.items()}
    print("  instructions of CPython's interpreter: " + ", ".join(f"{name} {n:,.0f}" for name, n in executed.items()))
    for name, each in zip(TRACED, exporters, strict=True):
        steps = count * STEPS
        print(
            f"  {name}: {each.events / steps:.2f} events and {each.bytes / steps:,.0f} bytes a step,"
            f" {each.bytes / requests[name]:,.0f} bytes a request"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[16, 64, 256])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for at_a_time in arguments.at_a_time:
            measure(Path(folder), arguments.rounds, at_a_time)


if __name__ == "__main__":
    main()
