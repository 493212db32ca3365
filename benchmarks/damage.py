"""No false alarm under damage, and no silence either: recorded runs of vLLM's real scheduler, damaged at random, by seed.

Prints how many events of healthy runs were judged after damage, live, audited, replayed and through the sidecar's store, and
every finding that the undamaged run does not have (exit code 1); of runs with an injected fault, how many findings are made
again after the same damage, by rule; and how many judgements of a day are `unknown` after one event of it was lost, and after
a late start. With --write, the figures go into docs/recall.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from operator import is_
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import loss_injection
from damages import S, damaged, mixture, sent
from faults import FAULTS
from loss_injection import Caught
from recall import MARK, PAGE
from recorded_runs import CONNECTORS
from sidecars import Name, live, read, stored

from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.tracer.rules.rule import EngineRule
from kvtrail.tracer.rules.rule_set import all_rules

FRESH = 150
"""Histories after which other healthy runs are recorded."""
IN_FILES = 10
"""One history in this many is also read from a file and judged through the store: both take ten times as long."""
FIRST_MINUTES = 10
PAIRS_EACH = 5
"""Recorded runs of two engines of each kind."""


class Healthy:
    """The outcome of damaged healthy histories."""

    def __init__(self) -> None:
        self.events = self.histories = self.in_files = 0
        self.false: list[str] = []
        self.damages: Counter[str] = Counter()


def judge_healthy(events: int, first: int, profiles: Sequence[str]) -> Healthy:
    """Judge damaged histories of healthy runs of these profiles, from this seed on, until `events` events have arrived."""
    result, seed = Healthy(), first
    while result.events < events:
        runs = loss_injection.healthy_runs(1, first=seed, profiles=tuple(profiles))
        for _ in range(FRESH):
            name, history = loss_injection.healthy_history(runs, seed)
            known = loss_injection.known_faults(name, live(sent(history)).found)
            delivery = damaged(sent(history), mixture(seed), seed)
            found: dict[str, set[Name]] = {"live": set(live(delivery).found)}
            if seed % IN_FILES == 0:
                with tempfile.TemporaryDirectory() as folder:
                    audited, replayed = read(delivery, Path(folder))
                    through = stored(delivery, Path(folder))
                found |= {"audit": set(audited.found), "replay": set(replayed.found), "store": set(through.found)}
                result.in_files += 1
            for way, names in found.items():
                result.false += [f"seed {seed}, {way}, {name}, {delivery.damages}: {each}" for each in names - known]
            result.damages.update(delivery.damages)
            result.events += sum(len(batch.events) for batch in delivery.batches)
            result.histories += 1
            seed += 1
            if result.events >= events:
                break
        _progress(f"{result.events:,} events, {result.histories} histories, {len(result.false)} false")
        loss_injection.healthy_runs.cache_clear()
    return result


def judge_faulty(runs_each: int, damages_each: int) -> dict[str, Caught]:
    """How many findings of faulty runs are made again after damage, by rule."""
    result: defaultdict[str, Caught] = defaultdict(Caught)
    for fault in FAULTS:
        for run, found in loss_injection.faulty_runs(fault, runs_each):
            for number in range(damages_each):
                seed = f"{run.name}/{number}"
                delivery = damaged(sent(run.events), mixture(seed), seed)
                for rule, caught in loss_injection.caught(run, found, delivery).items():
                    result[rule].add(caught)
        _progress(fault)
    return dict(sorted(result.items()))


def judge_pairs(histories: int, first: int) -> bool:
    """Judge pairs of engines with damage to either side or both: first correct ones, then as many with a fault, and print
    what was found. Returns whether anything was that should not be."""
    false: list[str] = []
    for kinds in (loss_injection.CORRECT_PAIRS, loss_injection.FAULTY_PAIRS):
        events, total, again = 0, Counter[str](), Counter[str]()
        for seed in range(first, first + histories):
            recorded = loss_injection.pair(seed // len(kinds) % PAIRS_EACH, kinds[seed % len(kinds)])
            named = {(rule, request) for rule, request, _ in live(sent(recorded)).found}
            delivery = loss_injection.damaged_sides(recorded, seed)
            found = {(rule, request) for rule, request, _ in live(delivery).found}
            known = named if kinds is loss_injection.FAULTY_PAIRS else set()
            false += [f"seed {seed}, {kinds[seed % len(kinds)]}, {delivery.damages}: {each}" for each in found - known]
            total.update(rule for rule, _ in named)
            again.update(rule for rule, _ in found & named)
            events += sum(len(batch.events) for batch in delivery.batches)
        what = "with a fault" if total else "correct"
        print(f"{histories} damaged histories of pairs, {what}: {events:,} events, {len(false)} false findings so far")
        for rule, count in sorted(total.items()):
            print(f"  {rule}: {again[rule]} of {count} found again")
    for line in false:
        print(line)
    return bool(false)


Shares = dict[str, float]
"""By rule."""


def judge_days(requests: int) -> tuple[Shares, Shares, int]:
    """The largest share of `unknown` judgements of each engine-wide rule in what is left of a day after one event was lost,
    over kinds of events; the same after a late start, without its first minutes; and the days' events."""
    after_loss, after_start = Shares(), Shares()
    days = loss_injection.a_day(requests), loss_injection.a_written_day()
    for run in days:
        start_ns, end_ns = run.events[0].end_ns, run.last_ns
        quarter_ns = start_ns + (end_ns - start_ns) // 4
        early = [event for event in run.events if event.recorder == run.scheduler and event.end_ns < quarter_ns]
        for kind in sorted({event.kind for event in early}):
            gone = random.Random(kind).choice([event for event in early if event.kind == kind])
            _enter(after_loss, loss_injection.unknown_shares(run.events, lost=partial(is_, gone), from_ns=gone.end_ns))
            _progress(f"{run.name} without one {kind}")
        from_ns = quarter_ns + FIRST_MINUTES * 60 * S
        late = [event for event in run.events if event.end_ns >= quarter_ns]
        _enter(after_start, loss_injection.unknown_shares(late, lost=lambda event: False, from_ns=from_ns))
    return after_loss, after_start, sum(len(run.events) for run in days)


def _enter(shares: Shares, counts: Mapping[str, tuple[int, int]]) -> None:
    """Keep the larger share of each engine-wide rule."""
    for rule in (rule.id for rule in all_rules() if isinstance(rule, EngineRule) and rule.id in counts):
        total, unknown = counts[rule]
        shares[rule] = max(shares.get(rule, 0.0), unknown / total)


def section(
    healthy: Healthy,
    caught: dict[str, Caught],
    days: tuple[Shares, Shares, int],
) -> str:
    """The figures, as Markdown."""
    whole = sum(each.whole for each in caught.values())
    whole_found = sum(each.whole_found for each in caught.values())
    seen, seen_found = sum(each.seen for each in caught.values()), sum(each.seen_found for each in caught.values())
    after_loss, after_start, events = days
    lines = [
        MARK,
        "Written by `python benchmarks/damage.py --write`, in ten minutes; `tests/connector/simulate/test_damage.py` runs a"
        " slice.\n",
        f"Healthy runs of vLLM's real scheduler (all profiles of `kvtrail check`, {len(CONNECTORS)} connectors, workers"
        " with recorders of their own, changing levels, ids used again) were damaged at random: sampling, losses,"
        " repetitions, any order, clocks an hour off, drifting and jumping, late starts and restarts of the sidecar,"
        " recorders killed, end records missing or too soon.\n",
        f"- **{len(healthy.false)} false drifts** in {healthy.events:,} events of {healthy.histories:,} damaged histories;"
        f" {healthy.in_files} of them were also audited, replayed, and judged through the sidecar's store.",
        f"- Faults injected into runs of the same kind: where everything arrived that a rule needs,"
        f" {whole_found:,} of {whole:,} findings are made again ({_share(whole_found, whole)}); where at least their"
        f" witnesses arrived, and of a deadline a sign that it is past, {seen_found:,} of {seen:,}"
        f" ({_share(seen_found, seen)}).",
        f"- A day of a recorded engine, and one in which every engine-wide rule has something to judge ({events:,} events):"
        f" after one lost event (the worst of one of each kind, in the worse of both days), and from {FIRST_MINUTES} minutes"
        " after a late start on, this share of judgements is `unknown`:\n",
        "| rule | after a loss | after a late start |",
        "| --- | ---: | ---: |",
        *(
            f"| `{rule}` | {_percent(after_loss[rule])} | {_percent(after_start[rule])} |"
            for rule in sorted(after_loss)
        ),
        "\n| rule | all arrived | found | witnesses arrived | found |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| `{rule}` | {each.whole:,} | {_share(each.whole_found, each.whole)} | {each.seen:,} |"
            f" {_share(each.seen_found, each.seen)} |"
            for rule, each in caught.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _share(part: int, whole: int) -> str:
    return _percent(part / whole) if whole else "-"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:100.100}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="events of damaged healthy histories")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--profile",
        action="append",
        choices=sorted(PROFILES),
        help="healthy histories of these alone, and nothing else",
    )
    parser.add_argument("--pairs", type=int, help="how many damaged pairs of engines to judge, and nothing else")
    parser.add_argument("--faulty", type=int, default=10, help="damages for each of two runs of each fault")
    parser.add_argument("--requests", type=int, default=10_000, help="of the recorded day")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/recall.md")
    arguments = parser.parse_args()
    if arguments.pairs:
        sys.exit(judge_pairs(arguments.pairs, arguments.seed))
    started = time.monotonic()
    healthy = judge_healthy(arguments.events, arguments.seed, arguments.profile or list(PROFILES))
    for line in healthy.false:
        print(line)
    if arguments.profile:
        print(f"{len(healthy.false)} false drifts in {healthy.events:,} events of {healthy.histories:,} histories")
        sys.exit(1 if healthy.false else 0)
    text = section(healthy, judge_faulty(2, arguments.faulty), judge_days(arguments.requests))
    print(text)
    print(f"seeds from {arguments.seed}; {time.monotonic() - started:.0f} s")
    if arguments.write:
        PAGE.write_text(PAGE.read_text().partition(MARK)[0].rstrip() + "\n\n" + text)
    sys.exit(1 if healthy.false else 0)


if __name__ == "__main__":
    main()
