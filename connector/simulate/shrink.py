"""Shrinks a failing scenario: fewer requests, aborts and resets, shorter prompts, simpler workers, a simpler network.

Delta debugging over the lists of a scenario, then over its numbers. Every candidate is run; the result fails in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kvtrail.connector.known.nixl.stand_in.network import Schedule
from kvtrail.connector.simulate.scenario import Arrival, Scenario, Segment, Workers
from kvtrail.tracer.history.shrink import minimal

Fails = Callable[[Scenario], bool]


def shrink(
    scenario: Scenario, fails: Fails, *, tries: int | None, on_try: Callable[[Scenario], None] = lambda smallest: None
) -> Scenario:
    """The smallest scenario found in `tries` tries for which `fails` holds, as it does for the given one; None sets no limit.

    `on_try` is called with the smallest so far, before each try.
    """
    smallest, tried = scenario, 0

    def fails_in_time(candidate: Scenario) -> bool:
        nonlocal tried
        if tries is not None and tried >= tries:
            return False
        tried += 1
        on_try(smallest)
        return fails(candidate)

    while True:
        before = smallest
        for part in (_simpler_pair, _fewer_arrivals, _fewer_happenings, _simpler_world, _shorter, _sooner):
            smallest = part(smallest, fails_in_time)
        if smallest == before or tried == tries:
            return _plain_names(smallest, fails)


def _simpler_pair(scenario: Scenario, fails: Fails) -> Scenario:
    """Of two engines: fewer requests, a simpler network, engines that are never busy."""
    if scenario.pair is None:
        return scenario
    pair = scenario.pair

    def fails_with(**changes: Any) -> bool:
        nonlocal pair
        candidate = replace(pair, **changes)
        if candidate == pair or not fails(replace(scenario, pair=candidate)):
            return False
        pair = candidate
        return True

    minimal(pair.requests, lambda kept: bool(kept) and fails_with(requests=tuple(kept)))
    minimal(pair.decodes, lambda kept: fails_with(decodes=tuple(kept)))
    prompt = Schedule(transfer_ticks=0, message_ticks=0, handshake_ticks=0)
    fails_with(prefill_every=1, decode_every=1)
    if not fails_with(network=prompt):
        fails_with(network=replace(prompt, failing=pair.network.failing, seed=pair.network.seed))
    fails_with(requests=tuple(replace(each, at_tick=0, kept_ticks=0) for each in pair.requests))
    return replace(scenario, pair=pair)


def _fewer_arrivals(scenario: Scenario, fails: Fails) -> Scenario:
    def without(arrivals: Sequence[Arrival]) -> Scenario:
        ids = {arrival.id for arrival in arrivals}
        aborts = tuple(abort for abort in scenario.aborts if abort.id in ids)
        return replace(scenario, arrivals=tuple(arrivals), aborts=aborts)

    kept = minimal(scenario.arrivals, lambda arrivals: bool(arrivals or scenario.pair) and fails(without(arrivals)))
    return without(kept)


def _fewer_happenings(scenario: Scenario, fails: Fails) -> Scenario:
    aborts = minimal(scenario.aborts, lambda kept: fails(replace(scenario, aborts=tuple(kept))))
    scenario = replace(scenario, aborts=tuple(aborts))
    resets = minimal(scenario.resets, lambda kept: fails(replace(scenario, resets=tuple(kept))))
    return replace(scenario, resets=tuple(resets))


def _simpler_world(scenario: Scenario, fails: Fails) -> Scenario:
    for simpler in (
        replace(scenario, workers=Workers(latest_steps=0)),
        replace(scenario, workers=Workers()),
        replace(scenario, workers=replace(scenario.workers, load_failures=0.0)),
        replace(scenario, drafts=0),
        replace(scenario, settings={k: v for k, v in scenario.settings.items() if k != "scheduling_policy"}),
        replace(scenario, seed=0),
        replace(scenario, arrivals=tuple(replace(arrival, priority=0) for arrival in scenario.arrivals)),
        replace(scenario, arrivals=tuple(replace(arrival, output=()) for arrival in scenario.arrivals)),
    ):
        if simpler != scenario and fails(simpler):
            scenario = simpler
    return scenario


def _shorter(scenario: Scenario, fails: Fails) -> Scenario:
    """Shorter prompts and outputs, each number as small as halving and counting down by blocks can make it."""
    for number, arrival in enumerate(scenario.arrivals):
        for candidate in _smaller_arrivals(arrival, scenario.block_size):
            arrivals = (*scenario.arrivals[:number], candidate, *scenario.arrivals[number + 1 :])
            smaller = replace(scenario, arrivals=arrivals)
            if fails(smaller):
                scenario = smaller
                break
    return scenario


def _sooner(scenario: Scenario, fails: Fails) -> Scenario:
    """All requests at once, or everything earlier."""
    if not scenario.arrivals:
        return scenario
    at_once = tuple(replace(arrival, at_step=0) for arrival in scenario.arrivals)
    by = min(each.at_step for each in scenario.arrivals)
    by = min([by, *(each.at_step for each in scenario.resets), *(each.at_step for each in scenario.aborts)])
    moved = replace(
        scenario,
        arrivals=tuple(replace(each, at_step=each.at_step - by) for each in scenario.arrivals),
        resets=tuple(replace(each, at_step=each.at_step - by) for each in scenario.resets),
        aborts=tuple(replace(each, at_step=each.at_step - by) for each in scenario.aborts),
    )
    for sooner in (replace(scenario, arrivals=at_once), moved):
        if sooner != scenario and fails(sooner):
            scenario = sooner
    return scenario


def _plain_names(scenario: Scenario, fails: Fails) -> Scenario:
    """Requests and segments with plain names, if it still fails: names are seeds."""
    names: dict[str, str] = {}
    ids = {arrival.id: f"r-{number}" for number, arrival in enumerate(scenario.arrivals)}

    def plain(segments: Sequence[Segment]) -> tuple[Segment, ...]:
        return tuple((names.setdefault(seed, f"part-{len(names)}"), count) for seed, count in segments)

    named = replace(
        scenario,
        arrivals=tuple(
            replace(each, id=ids[each.id], prompt=plain(each.prompt), output=plain(each.output))
            for each in scenario.arrivals
        ),
        aborts=tuple(replace(each, id=ids[each.id]) for each in scenario.aborts),
    )
    return named if named != scenario and fails(named) else scenario


def _smaller_arrivals(arrival: Arrival, block_size: int) -> Iterator[Arrival]:
    """Smaller forms of a request, the smallest first."""
    if arrival.max_tokens > 1:
        yield replace(arrival, max_tokens=1)
        yield replace(arrival, max_tokens=arrival.max_tokens // 2)
    for number, (seed, count) in enumerate(arrival.prompt):
        for fewer in dict.fromkeys((0, count // 2, (count - 1) // block_size * block_size)):
            if fewer < count and (fewer or len(arrival.prompt) > 1):
                segment = ((seed, fewer),) if fewer else ()
                yield replace(arrival, prompt=(*arrival.prompt[:number], *segment, *arrival.prompt[number + 1 :]))
