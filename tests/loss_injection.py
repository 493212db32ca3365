"""What is measured with damaged histories: false drifts, faults that are still found, and how long a loss lasts."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import recorded_runs
from damages import Batch, Delivery, S, by_recorder, damaged, lives, mixture, sent
from faults import NATIVE, RULES
from faulty_pairs import Mistake, drawn, with_pair
from history import history
from msgspec import structs
from recorded_runs import CONNECTORS, Run
from sidecars import FORGET_NS, Name, live, moments

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.connector.simulate.scenario import Arrival, Scenario
from kvtrail.tracer.detect.detector import GRACE_NS, Detector
from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.model.findings import Finding, Verdict
from kvtrail.tracer.rules.rule import DeadlineRule, EngineRule, Rule
from kvtrail.tracer.rules.rule_set import all_rules

REFUSED = {("ExampleConnector", profile) for profile in ("groups", "states", "block-sizes")}
"""Profiles that a connector is not for: this one takes a single KV cache group."""
HONEST_FAULTS = {"ExampleConnector": {"over-report", "stats-mismatch"}}
"""What is found in a connector of vLLM's as it is (docs/findings.md): a negative answer, and the engine's count of it."""
BEST_PROFILE = {
    "idle-preemption": "preemption-storm",
    "retried-lookup": "retry",
    "evicted-hit": "retry",
    "store-gap": "retry",
    "reset-hit": "reset",
    "load-store-overlap": "chunked-prefill",
    "stray-completion": "async",
    "failed-load-resume": "async",
    "unloaded-hit": "async",
    "null-block": "groups",
    "stale-block": "groups",
    "early-drafts": "spec-decode",
    "plan-blocks": "mixed",
    "load-range": "mixed",
    "no-token-left": "mixed",
    "under-report": "mixed",
    "rank-disagreement": "mixed",
}
"""The profile that brings out a fault best, where `abort` does not."""
MAX_SEEDS = 30
Said = tuple[str, str]
"""An event: its kind and its span's id."""


@cache
def healthy_runs(
    seeds: int, first: int = 0, *, of_each: int = len(CONNECTORS), profiles: Collection[str] = tuple(PROFILES)
) -> tuple[Run, ...]:
    """Healthy runs of each of these profiles with this number of connectors; some engines have two workers, some none that is
    recorded."""
    runs = tuple(
        recorded_runs.healthy(connector, profile, seed, workers=(1, 2, 0)[seed % 3])
        for seed in range(first, first + seeds)
        for which, connector in enumerate(CONNECTORS)
        for number, profile in enumerate(PROFILES)
        if profile in profiles
        if (which - number) % len(CONNECTORS) < of_each and (connector, profile) not in REFUSED
    )
    assert not [run for run in runs if run.error], [f"{run.name}: {run.error}" for run in runs if run.error]
    return runs


def healthy_history(runs: Sequence[Run], seed: object) -> tuple[str, list[Event]]:
    """A history of healthy runs: one, or two lives of an engine that uses the same ids, or two engines at the same time."""
    rng = random.Random(f"history/{seed}")
    first = rng.choice(runs)
    kind = rng.choice(["one", "one", "lives", "engines"])
    profile = first.name.split("/")[1]
    others = [run for run in runs if run is not first and run.name.split("/")[1] == profile]
    if kind == "one" or not others:
        return first.name, list(first.events)
    second = rng.choice(others)
    name = f"{first.name} and {second.name} as two {kind}"
    if kind == "lives":
        return name, lives(first.events, second.events)
    return name, [*first.events, *as_engine("another", second.events)]


def as_engine(engine: str, events: Iterable[Event]) -> list[Event]:
    """The events as those of another engine, with recorders and traces of its own."""

    def renamed(text: str) -> str:
        return f"{int(text, 16) ^ 0xFFFF:0{len(text)}x}"

    return [
        structs.replace(
            event,
            engine=engine,
            recorder=renamed(event.recorder),
            trace_id=renamed(event.trace_id),
            span_id=renamed(event.span_id),
        )
        for event in events
    ]


def known_faults(name: str, found: Iterable[Name]) -> set[Name]:
    """Of what is found in a healthy history as it was recorded: the true findings in connectors of vLLM's. There may be no
    others.

    Raises:
        AssertionError: a rule accuses a history that nothing has happened to.
    """
    allowed = {rule for connector, rules in HONEST_FAULTS.items() if connector in name for rule in rules}
    wrong = {each for each in found if each[0] not in allowed}
    assert not wrong, f"{name}, undamaged: {sorted(wrong)}"
    return set(found)


def false_findings(name: str, history: Sequence[Event], delivery: Delivery) -> set[Name]:
    """What is found in a healthy history after damage, and not in what was recorded."""
    found = set(live(delivery).found)
    return found and found - known_faults(name, live(sent(history)).found)


@dataclass
class Caught:
    """How many findings of a rule should still be made, and how many are.

    Attributes:
        whole: those for which everything arrived that the rule needs; `whole_found` of them were made.
        seen: those with all witnesses, and for a deadline a sign that it is past; `seen_found` of them were made.
    """

    whole: int = 0
    whole_found: int = 0
    seen: int = 0
    seen_found: int = 0

    def add(self, other: Caught) -> None:
        self.whole += other.whole
        self.whole_found += other.whole_found
        self.seen += other.seen
        self.seen_found += other.seen_found


def faulty_runs(fault: str, count: int) -> Iterator[tuple[Run, dict[Name, Finding]]]:
    """Runs with a fault that show it as they were recorded, each with its findings; fewer than `count` if it is hard to bring
    out."""
    connector = "OffloadingConnector" if fault in (*NATIVE, "poll-starvation") else "OffloadConnector"
    for seed in range(MAX_SEEDS):
        run = recorded_runs.faulty(fault, connector, BEST_PROFILE.get(fault, "abort"), seed)
        found = live(sent(run.events)).found
        if any(rule == RULES[fault] for rule, _, _ in found):
            yield run, found
            count -= 1
            if not count:
                return


def caught(run: Run, found: Mapping[Name, Finding], delivery: Delivery) -> dict[str, Caught]:
    """Which findings of a run are made again after damage, by rule."""
    again = {(rule, request) for rule, request, _ in live(delivery).found}
    arrived = in_time(delivery)
    only_sampled = any(event.sampled_only for batch in delivery.batches for event in batch.events)
    rules = {rule.id: rule for rule in all_rules()}
    result: defaultdict[str, Caught] = defaultdict(Caught)
    for (name, request, _), finding in found.items():
        rule = rules[name]
        if only_sampled and isinstance(rule, EngineRule):
            continue  # it says so
        witnesses = {(each.kind, each.span_id) for each in finding.witness}
        lives_seen = {arrived.get(each) for each in witnesses}
        if None in lives_seen or len(lives_seen) > 1:
            continue
        if isinstance(rule, DeadlineRule) and not lives_seen & past_due(rule, witnesses, run.events, arrived):
            continue
        made = (name, request) in again
        result[name].add(Caught(seen=1, seen_found=made))
        if {arrived.get(each) for each in needed(rule, finding, run.events)} <= lives_seen:
            result[name].add(Caught(whole=1, whole_found=made))
    return result


def past_due(
    rule: DeadlineRule, witnesses: set[Said], events: Sequence[Event], arrived: Mapping[Said, int]
) -> set[int]:
    """The lives of the sidecar that got an event which shows that the time after the last witness is over."""
    last = max((e for e in events if (e.kind, e.span_id) in witnesses), key=lambda event: event.end_ns)
    due_ns = last.end_ns + int(rule.after_s * S)
    later = ((e.kind, e.span_id) for e in events if e.recorder == last.recorder and e.end_ns >= due_ns)
    return {arrived[each] for each in later if each in arrived}


def needed(rule: Rule, finding: Finding, events: Sequence[Event]) -> set[Said]:
    """What a rule needs for a finding, as its documentation has it: its one witness; every event of the request; every event
    of the engine before; or, where something did not happen in time, every event of the recorder in that time."""
    witnesses = {(each.kind, each.span_id) for each in finding.witness}
    seen = [event for event in events if (event.kind, event.span_id) in witnesses]
    last = max(seen, key=lambda event: event.end_ns)
    if not rule.needs_history and len(witnesses) == 1:
        return witnesses
    if isinstance(rule, EngineRule):
        needs = (event for event in events if event.recorder == last.recorder and event.sequence <= last.sequence)
    elif isinstance(rule, DeadlineRule):
        until_ns = last.end_ns + int((rule.after_s + 20) * S)
        needs = (
            event
            for event in events
            if event.request == last.request
            or (event.recorder == last.recorder and last.end_ns <= event.end_ns <= until_ns)
        )
    else:
        needs = (event for event in events if event.request == last.request)
    return witnesses | {(event.kind, event.span_id) for event in needs}


def in_time(delivery: Delivery) -> dict[Said, int]:
    """The events that came before the sidecar gave them up, each with the life of the sidecar that got it."""
    first: dict[tuple[str, int, str], tuple[int, Event]] = {}
    for batch in delivery.in_order():
        for event in batch.events:
            first.setdefault((event.recorder, event.sequence, event.span_id), (batch.at_ns, event))
    found: dict[Said, int] = {}
    soonest: dict[str, int] = {}
    for (recorder, _, _), (at_ns, event) in sorted(first.items(), key=lambda item: -item[0][1]):
        if at_ns < soonest.get(recorder, at_ns) + GRACE_NS - S:
            found[event.kind, event.span_id] = sum(at_ns >= restart for restart in delivery.restarts)
        soonest[recorder] = min(at_ns, soonest.get(recorder, at_ns))
    return found


# Pairs of engines.


@cache
def pair(seed: int, kind: str = "") -> tuple[Event, ...]:
    """What two engines have recorded that hand over: correct, or with a router's mistake, or with reports that are lost, or
    that come twice from one of two ranks."""
    mistakes = tuple(mistake for mistake in Mistake if mistake == kind)
    lost, repeated, failing = (
        0.3 * (kind in names) for names in (("lost",), ("repeated", TWICE_FROM_ONE), ("failing",))
    )
    scenario = drawn(seed, mistakes=mistakes, lost=lost, repeated=repeated, failing=failing, dies=kind == "dies")
    if kind in (TWO_RANKS, TWICE_FROM_ONE):
        scenario = with_pair(scenario, decode_ranks=2)
    events = recorded_runs.play_pair_once(scenario, configuration("NixlConnector", {})).events
    # Recorders name themselves at random, and a damage chooses one of them by its name: the same one in each session.
    names = {name: f"{number:016x}" for number, name in enumerate(dict.fromkeys(event.recorder for event in events), 1)}
    return tuple(structs.replace(event, recorder=names[event.recorder]) for event in events)


TWO_RANKS, TWICE_FROM_ONE = "two ranks", "twice from one of two ranks"
CORRECT_PAIRS = ("", "", "repeated", "failing", "dies", TWO_RANKS)
"""Kinds of pairs in which no rule may find anything."""
PIECE = 20
"""Events of a batch."""
FAULTY_PAIRS = (Mistake.EXCHANGED, Mistake.TWICE, Mistake.SHORT, Mistake.OVERDUE, "lost", TWICE_FROM_ONE)


def with_workers(events: Iterable[Event]) -> list[Event]:
    """The events as an engine would record them with its worker in a process of its own, with a recorder of its own."""
    numbers: Counter[str] = Counter()
    of_requests: Counter[tuple[str, str | None]] = Counter()

    def recorded(event: Event, recorder: str) -> Event:
        number, of_request = numbers[recorder], of_requests[recorder, event.request]
        numbers[recorder] += 1
        of_requests[recorder, event.request] += 1
        changed = structs.replace(
            event,
            recorder=recorder,
            sequence=number,
            request_sequence=0 if event.request is None else of_request,
            span_id=f"{(int(recorder, 16) ^ number) % 2**64:016x}",
        )
        if isinstance(changed, Heartbeat):
            changed.recorder_recorded = number
        return changed

    found = []
    for event in sorted(events, key=lambda event: (event.engine, event.sequence)):
        worker = f"{int(event.recorder, 16) ^ 0xF00D << 32:0{len(event.recorder)}x}"
        if isinstance(event, Heartbeat):
            found += [recorded(event, event.recorder), recorded(event, worker)]
        else:
            found.append(recorded(event, worker if event.role == "worker" else event.recorder))
    return found


def damaged_sides(events: Sequence[Event], seed: object) -> Delivery:
    """What two engines have recorded, with damage to one side, or to both, each with its own. The workers of some are
    processes of their own."""
    rng = random.Random(f"sides/{seed}")
    if rng.random() < 0.5:
        events = with_workers(events)
    engines = [*dict.fromkeys(event.engine for event in events)]  # their ids are random
    hurt = rng.choice([engines[:1], engines[1:], engines])
    batches: list[Batch] = []
    restarts: set[int] = set()
    damages: list[str] = []
    for number, engine in enumerate(engines):
        side = _in_pieces(sent(event for event in events if event.engine == engine))
        if engine in hurt:
            side = damaged(side, mixture(f"{seed}/{number}"), f"{seed}/{number}")
        batches += side.batches
        restarts |= set(side.restarts)
        damages += (f"{engine}: {damage}" for damage in side.damages)
    return Delivery(batches=tuple(batches), restarts=tuple(sorted(restarts)), damages=tuple(damages))


def _in_pieces(delivery: Delivery) -> Delivery:
    """A run of two engines takes less than a second: it is sent as if it had taken longer."""
    return replace(
        delivery,
        batches=tuple(
            Batch(batch.at_ns + first * S // 100, batch.events[first : first + PIECE])
            for batch in delivery.batches
            for first in range(0, len(batch.events), PIECE)
        ),
    )


# How long a loss lasts.


@cache
def a_day(requests: int = 20_000) -> Run:
    """A day of an engine: bursts of requests with shared prefixes; their chunks stay in the store or are evicted from it."""
    rng = random.Random("a day")
    heads = [(f"head-{number}", 32 * rng.randrange(2, 8)) for number in range(30)]
    arrivals = tuple(
        Arrival(
            f"chat-{number}",
            (rng.choice(heads), (f"tail-{number}", rng.randrange(1, 100))),
            rng.randrange(1, 4),
            number // 10 * 12,
        )
        for number in range(requests)
    )
    scenario = Scenario(arrivals=arrivals, num_blocks=100, settings={"max_num_batched_tokens": 512}, most_steps=10**9)
    steps = requests / 10 * 12
    subject = ConnectorUnderTest("OffloadConnector", {"cpu_bytes_to_use": 12_000_000, "chunk_size": 32})
    return recorded_runs.play(
        scenario, subject.configuration(), rng, name="a day", levels=(Level.DETAILED,), idle_s=86_400 / steps * 18
    )


ROUND = """
key t{n} after t0 of d{n}
key t{n} after t0 of d{n}
a{n}: start 97 as plain
a{n}: L 97 c0 h64 -> 64 async keys k{m},k{p}
a{n}: A 64 [1-4]
a{n}: plan load 0+64 [1 2] keys k{m},k{p} #{n}1
a{n}: done #{n}1
a{n}: R
a{n}: check loaded 2
a{n}: S 64+33 [1-4]
b{n}: L 65 c0 h64 -> 64 async keys k{m},k{p}
b{n}: prefetch 0+64 keys k{m},k{p}
b{n}: A 64 [5-7]
d{n}: L 20 c0 h0 -> 0
d{n}: A 0 [9]
d{n}: S 0+20 [9]
d{n}: end
e{n}: L 65 c0 -> 64 async
e{n}: A 64 [10-12]
e{n}: xfer read posted 2 rank 0 peer p
e{n}: xfer read done rank 0 peer p
e{n}: R
e{n}: end aborted
wait 10 full
b{n}: error [6]
a{n}: plan store 64+32 [3] keys k{n} #{n}2
a{n}: done #{n}2
b{n}: R
b{n}: S 32+33
a{n}: P free 1
b{n}: plan store 0+64 [5 6] keys l{n},m{n} #{n}3
evict k{m}
b{n}: done #{n}3
b{n}: end
a{n}: L 98 c0 h0 -> 0
a{n}: A 0 [5-8]
a{n}: S 0+98 [5-8]
a{n}: end
evict l{n}
evict m{n}
g{n}: L 65 c0 -> later
g{n}: end aborted
wait 76
"""
"""What every engine-wide rule judges, in 86 seconds."""
EIGHTH = """
holds k{p},k{n}
reset
c{n}: L 65 c0 h0 -> 0
c{n}: A 0 [1-3]
c{n}: S 0+65 [1-3]
c{n}: plan store 0+64 [1 2] keys k{p},k{n}
c{n}: end
"""
"""What comes after each eighth of these rounds."""


@cache
def a_written_day(rounds: int = 1000) -> Run:
    """A day in the language of histories, or less: every engine-wide rule has something to judge in it, all the time."""
    lines = ["s: plan store 0+64 keys k-2,k-1\ns: end"]
    for n in range(rounds):
        lines += [text.format(n=n, m=n - 2, p=n - 1) for text in ((ROUND, EIGHTH) if n % 8 == 7 else (ROUND,))]
    events = history("".join(lines), connector="OffloadConnector", chunk=32, recorder="recorder")
    return Run(name="a written day", events=tuple(events), scheduler="recorder")


def unknown_shares(
    events: Iterable[Event], *, lost: Callable[[Event], bool], from_ns: int
) -> dict[str, tuple[int, int]]:
    """Of each rule, its judgements after a moment of the recorded time, and how many of these are `unknown`, when some events
    are lost."""
    delivery = sent(event for event in events if not lost(event))
    detector = Detector()
    before: Counter[tuple[str, Verdict]] | None = None
    for moment_ns, batch in moments(delivery.in_order()):
        if before is None and moment_ns >= from_ns:
            before = detector.verdicts
        if batch is not None:
            detector.feed(batch.events, at_ns=moment_ns)
        else:
            detector.settle(before_ns=moment_ns - GRACE_NS)
            detector.tick()
            detector.forget_finished(before_ns=moment_ns - FORGET_NS)
    after = detector.verdicts - (before or Counter())
    totals: Counter[str] = Counter()
    for (rule, _), count in after.items():
        totals[rule] += count
    return {rule: (total, after[rule, Verdict.UNKNOWN]) for rule, total in totals.items()}


# Small histories that show a false drift.


def shrunk(delivery: Delivery, shows: Callable[[Delivery], bool]) -> Delivery:
    """The smallest delivery that still shows it. Whatever is left out is lost, which may happen to any history."""
    for tried in (replace(delivery, restarts=()), _merged(delivery)):
        if shows(tried):
            delivery = tried
    parts = 2
    while (total := sum(len(batch.events) for batch in delivery.batches)) > 1:
        size = max(1, total // parts)
        for first in range(0, total, size):
            tried = _cut(delivery, first, first + size)
            if tried.batches and shows(tried):
                delivery, parts = tried, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(total, parts * 2)
    return delivery


def _cut(delivery: Delivery, first: int, last: int) -> Delivery:
    """The delivery without the events in [first, last), counted as they arrive."""
    batches, number = [], 0
    for batch in delivery.in_order():
        kept = tuple(e for place, e in enumerate(batch.events, number) if not first <= place < last)
        number += len(batch.events)
        if kept:
            batches.append(Batch(batch.at_ns, kept))
    return replace(delivery, batches=tuple(batches))


def _merged(delivery: Delivery) -> Delivery:
    """The delivery with each event once, in the order of its recorder's numbers."""
    events = {(e.recorder, e.sequence, e.span_id): e for events in by_recorder(delivery).values() for e in events}
    return replace(sent(events.values()), damages=delivery.damages)


def reported(delivery: Delivery) -> str:
    """A small delivery in words: each event with its number, its times and what it says."""
    lines = [f"{', '.join(delivery.damages)}; restarts: {list(delivery.restarts)}"]
    start_ns = min((batch.at_ns for batch in delivery.batches), default=0)
    for batch in delivery.in_order():
        for event in batch.events:
            said = {name: value for name, value in event.numbers().items() if value is not False}
            lines.append(
                f"  at {(batch.at_ns - start_ns) / 1e9:.1f} s: {event.recorder[:4]} #{event.sequence} {event.kind}"
                f" {event.request or ''}.{event.request_sequence} epoch {event.epoch} at"
                f" {(event.end_ns - recorded_runs.START_NS) / 1e9:.2f} s {said}"
            )
    return "\n".join(lines)
