"""No false alarm under load: correct connectors on vLLM's real scheduler in engines that are busy, at the speed of real ones.

Prints how many events were judged, live, audited, replayed and through the sidecar's store, how much recorded time that
is, and every finding (exit code 1).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from busy_runs import busy, hybrid
from damages import sent
from sidecars import live, read, stored

IN_FILES = 10
"""One run in this many is also read from a file, which takes ten times as long."""
HYBRID = 4
"""One run in this many is of a hybrid model, with several KV cache groups."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000, help="judge at least this many")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    started, seed, events, recorded_s, false = time.monotonic(), arguments.seed, 0, 0.0, 0
    while events < arguments.events:
        run = busy(seed) if seed % HYBRID else hybrid(seed)
        delivery = sent(run.events)
        judged = {"live": live(delivery)}
        if seed % IN_FILES == 0:
            with tempfile.TemporaryDirectory() as folder:
                judged["audit"], judged["replay"] = read(delivery, Path(folder))
                judged["store"] = stored(delivery, Path(folder))
        found = [f"{way}: {each}" for way, result in judged.items() for each in result.found]
        for each in found:
            print(f"{run.name}: {each}", flush=True)
        false += len(found)
        events += len(run.events)
        recorded_s += (run.last_ns - run.events[0].end_ns) / 1e9
        seed += 1
        if seed % 20 == 0:
            print(f"{events:,} events of {seed - arguments.seed} runs, {false} findings", file=sys.stderr, flush=True)
    print(
        f"{false} findings in {events:,} events of {seed - arguments.seed} busy engines, {recorded_s / 3600:,.0f} hours"
        f" of recorded time, seeds from {arguments.seed}; {time.monotonic() - started:.0f} s"
    )
    sys.exit(1 if false else 0)


if __name__ == "__main__":
    main()
