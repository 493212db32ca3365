"""A trial: one scenario run with a connector, and how it failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.judges.failure import BYTES, CRASH, HANG, RULE, Failure
from kvtrail.connector.simulate.pairs.pairs import play_pair
from kvtrail.connector.simulate.run import Played, Unbuildable, play
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.connector.simulate.shrink import shrink
from kvtrail.tracer.model.findings import clock
from kvtrail.tracer.model.words import some
from kvtrail.tracer.rules.contents.mismatch import DIFFERS

BY_FINGERPRINT = "byte-drift"
"""The rule that finds wrong bytes by their fingerprints."""
LAST_EVENTS = 12
"""Number of events that are shown of a run that crashed or hung."""
SHRINK_STEPS = 25_000
"""Maximum number of scheduling steps to shrink one failure, if the tries are limited. A try that fills a store to measure its
capacity takes thousands of steps."""
CONFIRMATIONS = 2
"""Number of times that a failing scenario runs again, before and after it is shrunk."""
_NUMBERS = re.compile(r"\d+|'[^']*'|\"[^\"]*\"|\b[a-z]+-\S+")


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A failure with a small scenario that shows it.

    Attributes:
        scenario, played, failure: the scenario, its run, and the failure there.
        seen, runs: number of repeated runs that failed in the same way, and of all repeated runs; a failure is flaky if they
            differ.
    """

    scenario: Scenario
    played: Played
    failure: Failure
    seen: int
    runs: int

    @property
    def is_flaky(self) -> bool:
        return self.seen < self.runs


def failures(played: Played) -> list[Failure]:
    """The failures of a run. A rule comes before the crash that it explains. Wrong KV is one failure, even if both the
    comparison of bits and fingerprints show it."""
    # Workers that copy nothing are not real ones.
    seen = [each for each in played.observations if each.kind != BYTES or played.loads_copied]
    is_seen = any(each.kind == BYTES for each in seen)
    found = [
        Failure(RULE, each.rule, each.explanation, where=each.numbers.get("where", ""))
        for each in played.findings
        if not (is_seen and each.rule == BY_FINGERPRINT and each.numbers["where"] == DIFFERS)
    ]
    found += seen
    if played.error is not None:
        found.append(Failure(CRASH, without_numbers(played.error), played.error, _details(played)))
    elif played.unfinished:
        waiting = ", ".join(list(played.unfinished)[:5])
        text = f"{some(len(played.unfinished), 'request')} had not ended after {some(played.steps, 'step')}: {waiting}"
        found.append(Failure(HANG, "requests never end", text, _details(played)))
    first: dict[str, Failure] = {}
    for each in found:
        first.setdefault(each.id, each)
    return list(first.values())


def run(tested: ConnectorUnderTest, scenario: Scenario, *, at_rest: bool = True) -> tuple[Played, list[Failure]]:
    """Run a scenario with the connector, and check `at_rest` what is left. A crash or a hang that also happens without a
    connector is not its failure."""
    if scenario.pair is not None:
        pair = play_pair(scenario, tested.configuration())
        return pair, failures(pair)
    child = 2 if tested.beside else 0
    played = play(
        scenario,
        tested.configuration(),
        own_workers=tested.own_workers,
        child=child,
        observed=True,
        at_rest=at_rest,
    )
    found = failures(played)
    if any(failure.kind in (CRASH, HANG) for failure in found):
        alone = {failure.id for failure in failures(play(scenario, None))}
        found = [failure for failure in found if failure.id not in alone]
    return played, found


def shrunk(
    failure: Failure,
    played: Played,
    tested: ConnectorUnderTest,
    scenario: Scenario,
    *,
    tries: int | None,
    known: Sequence[Scenario] = (),
    on_try: Callable[[Any], None] = lambda smallest: None,
) -> Shrunk:
    """Run a failed scenario again. If it always fails in the same way, shrink it in at most `tries` tries, and run the
    smallest one again. A `known` small scenario that always fails in the same way is taken instead. With `tries` 0, nothing
    runs again."""
    if tries == 0:
        return Shrunk(scenario, played, failure, 1, 1)
    best = scenario, played, failure
    at_rest, steps = False, 0

    def fails(candidate: Scenario) -> bool:
        nonlocal best, steps
        try:
            played, found = run(tested, candidate, at_rest=at_rest)
        except Unbuildable:  # another connector's: this one cannot have its groups or its ranks
            return False
        steps += played.steps
        same = next((each for each in found if each.id == failure.id), None)
        if same is not None:
            best = candidate, played, same
        return same is not None

    def fails_in_time(candidate: Scenario) -> bool:
        return (tries is None or steps < SHRINK_STEPS) and fails(candidate)

    again = fails(scenario)
    at_rest = scenario.pair is None and not again  # what is left takes longer to look at than a small scenario
    for small in known:
        if (small.pair is None) != (scenario.pair is None):
            continue  # another connector may have shown it in a hand-off
        on_try(small)
        if all(fails(small) for _ in range(CONFIRMATIONS)):
            return Shrunk(*best, CONFIRMATIONS, CONFIRMATIONS)
    best = scenario, played, failure
    seen = again + sum(fails(scenario) for _ in range(CONFIRMATIONS if at_rest else CONFIRMATIONS - 1))
    if seen == CONFIRMATIONS:
        smallest = shrink(scenario, fails_in_time, tries=tries, on_try=on_try)
        seen = sum(fails(smallest) for _ in range(CONFIRMATIONS))
    return Shrunk(*best, seen, CONFIRMATIONS)


def without_numbers(text: str) -> str:
    """An error's text without the parts that differ between trials: numbers, names, ids."""
    return _NUMBERS.sub("…", text.splitlines()[0])[:160] if text else text


def _details(played: Played) -> str:
    """The traceback of a run, its last events, and the state of each unfinished request."""
    parts = [played.traceback] if played.traceback else []
    events = [event for event in played.events if event.kind != "kv.recorder"][-LAST_EVENTS:]
    if events:
        lines = (
            f"{clock(event.end_ns)} {event.kind} {event.request or ''} "
            + ", ".join(f"{name} {value}" for name, value in event.numbers().items() if value is not None)
            for event in events
        )
        parts.append("\n".join([f"The last {len(events)} events:", *(f"  {line[:300].rstrip()}" for line in lines)]))
    if played.unfinished:
        parts.append("\n".join(["Who had not ended:", *(f"  {r}: {state}" for r, state in played.unfinished.items())]))
    return "\n\n".join(parts)
