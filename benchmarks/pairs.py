"""Two bare engines with vLLM's NIXL connector, one handing over to the other: missed faults, false alarms, and cost.

    python benchmarks/pairs.py faults --seeds 40
    python benchmarks/pairs.py sound --events 1000000
    python benchmarks/pairs.py cost

`faults`: of each kind of planted fault, how many requests met it, how many of these its rule names, and who else is named.
`sound`: nothing is planted; all that is found is a false alarm, and is printed with its seed. Counted are the events that
belong to a hand-off. `cost`: how many of CPython's instructions a step of either engine takes with the connector's probe and
without it. The exit code is 1 if a fault is missed or anybody is accused falsely.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from faults import OF_PAIRS
from faulty_pairs import Mistake, PlayedPair, drawn, play_pair, with_pair

from kvtrail.connector.known.nixl.probe import NixlProbe
from kvtrail.connector.known.probe import Probe
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.pairs import engine as pairs
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.events.events import Handoff
from kvtrail.tracer.events.semconv import Kind

NIXL = configuration("NixlConnector", {})
OF_A_HANDOFF = {Kind.HANDOFF, Kind.READ, Kind.LEASE, Kind.FREE, Kind.SENT, Kind.RECEIVED}
SIMULATED = "/connector/simulate/"
"""Of what plays the engines nothing is counted: it takes the place of a model, a network and a router."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A kind of fault.

    Attributes:
        drawn: what `drawn` is asked for.
        rule: the rule that is to name it.
        met: the clients' ids of the requests that met it, in a pair that was played.
        ranks: of the engine that prefills, and of the other one.
    """

    drawn: Mapping[str, Any]
    rule: str
    met: Callable[[PlayedPair], set[str]]
    ranks: tuple[int, int] = (1, 1)


def _not_reported(pair: PlayedPair) -> set[str]:
    """Those that were answered, and lost the reader's report."""
    return _lost(pair) & pair.answered


def _lost(pair: PlayedPair) -> set[str]:
    """Those that lost a reader's report; where a client left, that may harm nobody."""
    return {pair.names[message.decode().rpartition(":")[0]] for message in pair.network.lost}


def _victims(pair: PlayedPair) -> set[str]:
    """Those that took a wrong load over from vLLM's prefix cache."""
    drifts = (each for each in pair.findings if each.rule == "byte-drift" and each.numbers["look"] == "admitted")
    return {pair.names[each.request] for each in drifts}


def _met(pair: PlayedPair) -> set[str]:
    """Those that met the router's mistake; of two with one name the second, as the finding names the first in its numbers."""
    first = {each.numbers["other"] for each in pair.findings if each.rule == "ambiguous-handoff"}
    return {name for name in pair.planted if name not in {pair.names.get(each) for each in first}}


FAULTS = {
    mistake: Planted({"mistakes": (Mistake(mistake),)}, rule, _met)
    for mistake, rule in OF_PAIRS.items()
    if mistake in set(Mistake)
} | {
    "report lost": Planted({"lost": 0.3}, "unacknowledged-handoff", _not_reported),
    "report twice": Planted({"repeated": 0.3}, "miscounted-readers", lambda pair: pair.given_back_early, ranks=(1, 2)),
}
RANKS = ((1, 1), (1, 2), (2, 1), (2, 2))
"""Tensor-parallel ranks of both engines where nothing is planted."""


def faults(seeds: Sequence[int]) -> bool:
    """Whether each planted fault was named, and nobody else."""
    total, right = 0, True
    for name, planted in FAULTS.items():
        counts: Counter[str] = Counter()
        for seed in seeds:
            pair = play_pair(_with_ranks(drawn(seed, **planted.drawn), planted.ranks), NIXL)
            met = planted.met(pair)
            counts.update(
                planted=len(met),
                named=len(met & pair.found(planted.rule)),
                others=len(pair.found() - met - _lost(pair) - _victims(pair) - {""}),
            )
        print(f"  {name:12} {planted.rule:24} {dict(counts)}", flush=True)
        total, right = (
            total + counts["planted"],
            right and counts["planted"] == counts["named"] and not counts["others"],
        )
    print(f"{total} planted faults of {len(FAULTS)} kinds")
    return right


def _with_ranks(scenario: Scenario, ranks: tuple[int, int]) -> Scenario:
    return with_pair(scenario, prefill_ranks=ranks[0], decode_ranks=ranks[1])


def sound(events: int, first: int) -> bool:
    """Whether nothing is found in `events` events of hand-offs between two correct engines."""
    counts: Counter[str] = Counter()
    accused, begun, seed = 0, time.monotonic(), first
    while counts.total() < events:
        ranks = RANKS[seed % len(RANKS)]
        # a report that comes twice is harmless only where one rank reads from each
        repeated = 0.1 * (seed // len(RANKS) % 2) if ranks[1] <= ranks[0] else 0.0
        scenario = drawn(seed, requests=60, failing=0.1 * (seed % 3), repeated=repeated)
        pair = play_pair(_with_ranks(scenario, ranks), NIXL)
        handed = {event.request for event in pair.events if isinstance(event, Handoff)}
        counts.update(event.kind for event in pair.events if event.kind in OF_A_HANDOFF and event.request in handed)
        for finding in pair.findings:
            accused += 1
            print("accused", seed, finding.rule, finding.explanation, flush=True)
        seed += 1
        if seed % 50 == 0:
            print(f"  {counts.total():,} events, {time.monotonic() - begun:,.0f} s", flush=True)
    print(f"{seed - first} pairs: {counts.total():,} events of hand-offs {dict(counts)}; accused: {accused}")
    return not accused


def cost(seeds: Sequence[int]) -> None:
    """Print what a step of each engine takes with the probe and without it."""
    sides = {name: Counter[str]() for name in ("with", "without")}
    for seed in seeds:
        for name, executed in sides.items():
            gc.collect()
            with nullcontext() if name == "with" else _no_probe():
                executed.update(_executed(seed))
    for engine in (pairs.PREFILL, pairs.DECODE):
        ours, theirs = (sides[name][engine] / sides[name][f"{engine} steps"] for name in ("with", "without"))
        print(
            f"{engine}: a step takes {ours:,.0f} instructions with the probe, {theirs:,.0f} without;"
            f" ratio {ours / theirs:.4f}"
        )


def _no_probe() -> Any:
    return mock.patch.multiple(
        NixlProbe,
        **{name: getattr(Probe, name) for name in vars(Probe) if name in vars(NixlProbe) and not name.startswith("_")},
    )


def _executed(seed: int) -> Counter[str]:
    """How many instructions and steps each engine takes in one scenario."""
    executed: Counter[str] = Counter()
    plain, steps = pairs.Engine.tick, dict[str, BareScheduler]()

    def counted(engine: pairs.Engine, tick: int) -> None:
        steps[engine.name] = engine.stage

        def trace(frame: Any, event: str, argument: Any) -> Any:
            if SIMULATED in frame.f_code.co_filename or "/stand_in/" in frame.f_code.co_filename:
                frame.f_trace_lines = False
                return trace if event == "call" else None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            executed[engine.name] += event == "opcode"
            return trace

        sys.settrace(trace)
        try:
            plain(engine, tick)
        finally:
            sys.settrace(None)

    with mock.patch.object(pairs.Engine, "tick", counted):
        play_pair(drawn(seed, requests=60), NIXL)
    executed.update({f"{name} steps": stage.steps for name, stage in steps.items()})
    return executed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("faults", "sound", "cost"))
    parser.add_argument("--seeds", type=int, default=20, help="of each kind of fault, or for the cost")
    parser.add_argument("--events", type=int, default=1_000_000, help="of hand-offs, for `sound`")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    match arguments.what:
        case "faults":
            sys.exit(not faults(seeds))
        case "sound":
            sys.exit(not sound(arguments.events, arguments.first))
        case "cost":
            cost(seeds)


if __name__ == "__main__":
    main()
