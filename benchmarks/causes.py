"""Causes of prompt tokens against a reference that sees every block of vLLM's pool and of the connector's store, and what
they cost the detector.

    python benchmarks/causes.py [--seeds 8] [--profile mixed] [--untold cache_events,probe,events]

Each profile of `kvtrail check` is played on the bare scheduler; tokens are counted by the reference's cause and by what
kvtrail said: right, unknown, or another cause.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from causes_reference import CONNECTORS, UNTOLD, Tally, admissions_of, compare, missed, run, untold_of

from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.tracer.detect import detector as detecting
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.model.events import Event

LEFT_OUT = ("crowd", "ranks", "groups", "multi")
"""Profiles that the connectors here refuse, or that say nothing of causes."""
ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--profile", action="append", choices=sorted(PROFILES))
    parser.add_argument("--untold", default=",".join(UNTOLD), help="what is left out of the recordings, in turn")
    options = parser.parse_args()
    profiles = options.profile or [name for name in PROFILES if name not in LEFT_OUT]
    for connector in CONNECTORS:
        played = [
            run(scenario_of(profile, seed), connector, seed=seed)
            for profile in profiles
            for seed in range(options.seeds)
        ]
        for untold in options.untold.split(","):
            tally: Tally = Counter()
            for number, (admissions, events) in enumerate(played):
                told = untold_of(events, untold, random.Random(number))
                tally += compare(admissions, admissions_of(told))
            show(connector, untold, tally)
        cost(connector, [events for _, events in played])


def show(connector: str, untold: str, tally: Tally) -> None:
    """Print the shares of what was missed, and what was wrong."""
    shares_of, wrong = missed(tally)
    total = shares_of.total()
    shares = ", ".join(f"{name} {shares_of[name] / total:.3%}" for name in ("right", "unknown", "wrong"))
    print(f"{connector}, not told: {untold}. {tally.total():,} tokens, {total:,} missed: {shares}")
    for (cause, said), tokens in wrong.most_common(5):
        print(f"    {cause} taken for {said}: {tokens:,}")


def cost(connector: str, histories: Sequence[Sequence[Event]]) -> None:
    """Print what the causes add to the detector, in pairs of runs."""
    count = sum(map(len, histories))
    ratios, added = [], []
    for _ in range(ROUNDS):
        with_causes, without = _detect(histories, causes=True), _detect(histories, causes=False)
        ratios.append(with_causes / without)
        added.append((with_causes - without) / count * 1e6)
    print(
        f"{connector}: Detector.feed with causes takes {statistics.median(ratios):.2f} times as long"
        f" ({min(ratios):.2f} to {max(ratios):.2f}, {ROUNDS} pairs of {count:,} events),"
        f" {statistics.median(added):.2f} us an event more"
    )


def _detect(histories: Sequence[Sequence[Event]], *, causes: bool) -> float:
    """How long the detector takes, in seconds."""
    kept = detecting.Detector._enter_causes
    if not causes:
        detecting.Detector._enter_causes = lambda *_: None  # type: ignore[method-assign]  # for this comparison only
    try:
        started_s = time.perf_counter()
        for events in histories:
            Detector().feed(events)
        return time.perf_counter() - started_s
    finally:
        detecting.Detector._enter_causes = kept  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
