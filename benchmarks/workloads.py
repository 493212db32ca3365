"""Workloads that are chosen by coverage, with the random mix of profiles, at an equal number of steps.

`reach`: how many points and situations sessions of correct connectors reach. `bugs`: after how many steps a planted bug is
found. Both in pairs of the same seed. What is found before the first mutation is found by both after the same steps, and is
counted apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rounds import print_ratio

from kvtrail.connector.simulate.check.session import Checked, check
from kvtrail.connector.simulate.check.workload import Workloads

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "docs" / "conformance"), str(ROOT / "tests" / "connector" / "simulate" / "check")]

CONNECTORS = ("OffloadConnector", "OffloadingConnector", "planted.probed:HostCache")
BUGS = tuple(
    f"planted.deep_bugs:{name}"
    for name in ("LeaseOfSecondPreemption", "ResetRefusedTooLate", "SlotFreedTwice", "RememberedMatch")
)
"""Those that need several things at once: the first turn of the profiles, which both sides have, finds most others."""
NAMES = ("coverage", "random")


def session(name: str, seed: int, steps: int, workloads: Workloads, *, first: bool = False) -> Checked:
    return check(name, seed=seed, steps=steps, shrink_tries=0, workloads=workloads, stop_at_first=first)


def reach(names: Sequence[str], seeds: Sequence[int], steps: int) -> None:
    points: tuple[list[float], list[float]] = ([], [])
    situations: tuple[list[float], list[float]] = ([], [])
    for name in names:
        for seed in seeds:
            for side, workloads in enumerate((Workloads.COVERAGE, Workloads.RANDOM)):
                checked = session(name, seed, steps, workloads)
                points[side].append(len(checked.reached))
                situations[side].append(len(checked.situations))
                print(
                    f"{name}, seed {seed}, {workloads}: {checked.trials.total()} runs, {checked.steps.total():,} steps,"
                    f" {len(checked.reached)} points, {len(checked.situations):,} situations",
                    *(f"found {each.failure.id}" for each in checked.found),
                    sep="; ",
                    flush=True,
                )
    print_ratio("points", *points, "points", NAMES)
    print_ratio("situations", *situations, "situations", NAMES)


def bugs(names: Sequence[str], seeds: Sequence[int], steps: int) -> None:
    needed: tuple[list[float], list[float]] = ([], [])
    at_once = 0
    for name in names:
        for seed in seeds:
            random, at = after(name, seed, steps, Workloads.RANDOM)
            if at is not None:
                at_once += 1
                print(f"{name}, seed {seed}: found by the first round of profiles, after {at:,} steps", flush=True)
                continue
            coverage, _ = after(name, seed, steps, Workloads.COVERAGE)
            needed[0].append(coverage)
            needed[1].append(random)
            print(
                f"{name}, seed {seed}: coverage {coverage:,} steps, random {random:,} ({steps:,}: not found)",
                flush=True,
            )
    print(f"found by the first round of profiles: {at_once} of {len(names) * len(seeds)}")
    for side, which in zip(needed, NAMES, strict=True):
        print(f"{which}: found {sum(each < steps for each in side)} of the other {len(side)}")
    print_ratio("steps until found", *needed, "steps", NAMES)


def after(name: str, seed: int, steps: int, workloads: Workloads) -> tuple[int, int | None]:
    """The steps until a bug is found, or `steps`; and once more, if no mutation ran before."""
    checked = session(name, seed, steps, workloads, first=True)
    if not checked.found:
        return steps, None
    total = min(checked.steps.total(), steps)
    return total, total if checked.trials.total() <= len(checked.profiles) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("reach", "bugs"))
    parser.add_argument("names", nargs="*", help="connectors, as for `kvtrail check`")
    parser.add_argument("--steps", type=int, default=20_000, help="scheduling steps of each session")
    parser.add_argument("--seeds", type=int, default=5, help="pairs for each connector")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.what == "reach":
        reach(arguments.names or CONNECTORS, seeds, arguments.steps)
    else:
        bugs(arguments.names or BUGS, seeds, arguments.steps)


if __name__ == "__main__":
    main()
