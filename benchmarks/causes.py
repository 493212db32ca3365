"""Causes of prompt tokens against a reference that sees every block of vLLM's pool and of the connector's store, and what
they cost the detector.

    python benchmarks/causes.py [--seeds 8] [--profile mixed] [--not-recorded "no probe"] [--connector OffloadConnector]

Each profile of `kvtrail check` is played on the bare scheduler; tokens are counted by the reference's cause and by what
kvtrail said: right, unknown, or another cause. A real LMCache runs in a whole engine, with random prompts.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import real_lmcache
from causes_not_recorded import EVERYTHING, NOT_RECORDED, heard
from causes_reference import CONNECTORS, Admission, Tally, compare, is_in_whole_blocks, missed, run

from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.tracer.causes.causes import Causes
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event

LEFT_OUT = ("crowd", "multi")
"""Profiles that say nothing of causes."""
TOGGLED = "level changed"
LMCACHE = "0.5.6"
ROOM = (40, 20, 80, 150)
"""Chunks that LMCache has room for, in turn."""
ROUNDS = 7
Played = Sequence[tuple[Sequence[Admission], Sequence[Event]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--profile", action="append", choices=sorted(PROFILES))
    parser.add_argument("--connector", action="append", choices=[*CONNECTORS, "LMCache"])
    parser.add_argument("--not-recorded", dest="left_out", action="append", choices=[*NOT_RECORDED, TOGGLED])
    options = parser.parse_args()
    profiles = options.profile or [name for name in PROFILES if name not in LEFT_OUT]
    chosen = options.left_out or [*NOT_RECORDED, TOGGLED]
    print("| connector | profile | recorded | missed tokens | right | unknown | wrong |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for connector in options.connector or (*CONNECTORS, "LMCache"):
        if connector == "LMCache":
            with_lmcache(options.seeds, "random prompts")
            with_lmcache(options.seeds, "random prompts, asynchronous", **real_lmcache.ASYNCHRONOUS)
            continue
        by_profile = {name: play(name, connector, options.seeds) for name in profiles}
        played = [each for some in by_profile.values() for each in some]
        if not options.left_out:
            for name, some in by_profile.items():
                show(connector, name, EVERYTHING, some)
        for what in chosen:
            if what == TOGGLED:
                toggled = [each for name in profiles for each in play(name, connector, options.seeds, toggled=True)]
                show(connector, "all", what, toggled)
            else:
                show(connector, "all", what, played)
        if not options.left_out:
            cost(connector, [events for _, events in played])


def play(profile: str, connector: str, seeds: int, *, toggled: bool = False) -> Played:
    """A profile's runs, without those that the reference does not know."""
    scenarios = [(seed, scenario_of(profile, seed)) for seed in range(seeds)]
    return [
        run(scenario, connector, seed=seed, toggled=toggled)
        for seed, scenario in scenarios
        if is_in_whole_blocks(scenario)
    ]


def show(connector: str, profile: str, what: str, played: Played) -> None:
    """Print the shares of what was missed, and what was wrong."""
    tally: Tally = Counter()
    for number, (admissions, events) in enumerate(played):
        tally += compare(admissions, heard(events, EVERYTHING if what == TOGGLED else what, seed=number))
    row(connector, profile, what, tally)


def with_lmcache(seeds: int, prompts: str, **extra: bool) -> None:
    """Print the same of a real LMCache in a whole engine, with stores of several sizes."""
    tallies: defaultdict[str, Tally] = defaultdict(Counter)
    for seed in range(seeds):
        room = ROOM[seed % len(ROOM)]
        with tempfile.TemporaryDirectory() as folder:
            said = real_lmcache.causes(Path(folder), LMCACHE, chunks=room, requests=150, blocks=48, seed=seed, **extra)
        for what, tally in said.items():
            tallies[what] += tally
    for what, tally in tallies.items():
        row(f"LMCache {LMCACHE}", prompts, what, tally)


def row(connector: str, profile: str, what: str, tally: Tally) -> None:
    """Print a row of the table."""
    shares, wrong = missed(tally)
    total = max(shares.total(), 1)
    figures = " | ".join(f"{shares[name] / total:.3%}" for name in ("right", "unknown", "wrong"))
    print(f"| {connector} | {profile} | {what} | {shares.total():,} | {figures} |", flush=True)
    for (cause, said), tokens in wrong.most_common(5):
        print(f"    {cause} taken for {said}: {tokens:,}", file=sys.stderr)


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
    kept = Causes.enter
    if not causes:
        Causes.enter = lambda *_: None  # type: ignore[method-assign]  # for this comparison only
    try:
        started_s = time.process_time()
        for events in histories:
            Detector().feed(events)
        return time.process_time() - started_s
    finally:
        Causes.enter = kept  # type: ignore[method-assign]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
