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

from causes_reference import CONNECTORS, Tally, admissions_of, compare, run
from msgspec import structs

from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.tracer.detect import detector as detecting
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.model.events import Event, Heartbeat, PrefixCache

LEFT_OUT = ("crowd", "ranks", "groups", "multi")
"""Profiles that the connectors here refuse, or that say nothing of causes."""
REUSED = ("held gpu", "loaded store")
UNTOLD = ("nothing", "cache_events", "probe", "events")
LOST = 0.01
"""The share of events that are lost where events are."""
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
                told = left_over(events, untold, random.Random(number))
                tally += compare(admissions, admissions_of(told))
            show(connector, untold, tally)
        cost(connector, [events for _, events in played])


def left_over(events: Sequence[Event], untold: str, rng: random.Random) -> list[Event]:
    """The events without what is not told."""
    if untold == "cache_events":  # a number without an event would be a loss
        return [_emptied(event) if isinstance(event, PrefixCache) else event for event in events]
    if untold == "probe":
        return [structs.replace(event, capabilities="{}") for event in events]
    if untold == "events":
        return [event for event in events if rng.random() >= LOST or event.kind in ("kv.lookup", "kv.alloc")]
    return list(events)


def _emptied(event: PrefixCache) -> Event:
    """An event in its place that says nothing."""
    common = {name: getattr(event, name) for name in ("engine", "recorder", "sequence", "role", "start_ns", "end_ns")}
    return Heartbeat(**common)


def show(connector: str, untold: str, tally: Tally) -> None:
    """Print the shares of what was missed, and what was wrong."""
    missed: Counter[str] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for (cause, said), tokens in tally.items():
        if cause in REUSED:
            continue
        missed[said if said in ("right", "unknown") else "wrong"] += tokens
        if said not in ("right", "unknown"):
            wrong[cause, said] += tokens
    total = missed.total()
    shares = ", ".join(f"{name} {missed[name] / total:.3%}" for name in ("right", "unknown", "wrong"))
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
