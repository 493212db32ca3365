"""No false alarm: random workloads on vLLM's bare real scheduler with correct connectors, and every rule as the judge.

Chunked prefill, preemption storms, retries, aborts, resets of the prefix cache and of the connector, priorities, full hits;
asynchronous loads and stores that end late and out of order (OffloadingConnector). Anything found is a false alarm, and is
printed with its seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bare_scheduler import scheduler, storm

from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.run import MUCH_LATER_S, judged_alone
from kvtrail.tracer.detect.detector import Detector

NATIVE = "TracedOffloadingConnector"


def run(name: str, seed: int) -> tuple[int, Detector]:
    """One random workload: the steps it took, and the detector after it."""
    rng = random.Random(seed)
    extra = {
        "cpu_bytes_to_use": rng.choice([2_000_000, 8_000_000, 50_000_000]),
        "kvtrail": {"level": "detailed" if seed % 3 else "basic"},
    }
    if name != NATIVE:
        extra["chunk_size"] = rng.choice([32, 64, 128, 256])
    with in_memory.exporters() as exporters:
        bare = scheduler(
            Path(tempfile.mkdtemp()),
            name,
            extra,
            seed=seed,
            scheduling_policy="priority" if seed % 2 else "fcfs",
            max_num_batched_tokens=rng.choice([48, 96, 200]),
            num_blocks=rng.choice([48, 64, 100]),
        )
        storm(bare, seed=seed, requests=200, reset_running=name != NATIVE)
        in_memory.flush()
    for each in exporters:
        each.seal(later_s=MUCH_LATER_S)
    return bare.steps, judged_alone(event for each in exporters for event in each.events())[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="scheduling steps for each connector")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    alarms = 0
    for name in ("OffloadConnector", NATIVE):
        checked: Counter[str] = Counter()
        steps, seed, started = 0, arguments.seed, time.monotonic()
        while steps < arguments.steps:
            took, detector = run(name, seed)
            steps += took
            for (rule, verdict), count in detector.verdicts.items():
                checked[f"{rule} {verdict}"] += count
            for held in detector.findings.values():
                for finding in held.values():
                    alarms += 1
                    print(f"seed {seed}: {finding.rule}, {finding.request}: {finding.explanation}")
            seed += 1
            if sys.stderr.isatty():
                print(f"\r{name}: {steps:,} steps, {seed - arguments.seed} seeds ", end="", file=sys.stderr, flush=True)
        seconds = time.monotonic() - started
        print(f"\n{name}: {steps:,} steps, {seed - arguments.seed} seeds, {seconds:.0f} s; facts checked:")
        print("  " + ", ".join(f"{what} {count:,}" for what, count in sorted(checked.items())))
    print(f"findings: {alarms}")
    sys.exit(1 if alarms else 0)


if __name__ == "__main__":
    main()
