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
    """The smallest scenario found in `tries` tries for which `fails` holds, as for the given one; None sets no limit.

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
        for part in (_fewer, _simpler, _shorter):
            smallest = part(smallest, fails_in_time)
        if smallest == before or tried == tries:
            return _adopted(smallest, fails, _plainly_named)


def _fewer(scenario: Scenario, fails: Fails) -> Scenario:
    """Fewer requests, aborts and resets."""
    for name in ("requests", "decodes", "arrivals", "aborts", "resets"):  # of a scenario, and of its pair of engines
        scenario = _fewer_of(name, scenario, fails)
    return scenario


def _fewer_of(name: str, scenario: Scenario, fails: Fails) -> Scenario:
    of_pair = name in ("requests", "decodes")
    holder: Any = scenario.pair if of_pair else scenario
    if holder is None:
        return scenario

    def having(kept: Sequence[Any]) -> Scenario:
        if of_pair:
            return _of_pair(scenario, **{name: tuple(kept)})
        ids = {each.id for each in (kept if name == "arrivals" else scenario.arrivals)}
        fewer: dict[str, Any] = {"aborts": tuple(each for each in scenario.aborts if each.id in ids), name: tuple(kept)}
        return replace(scenario, **fewer)

    needs_one = name == "requests" or (name == "arrivals" and scenario.pair is None)
    return having(minimal(getattr(holder, name), lambda kept: bool(kept or not needs_one) and fails(having(kept))))


def _adopted(scenario: Scenario, fails: Fails, *simplify: Callable[[Scenario], Scenario]) -> Scenario:
    """The scenario, simplified by each of these functions with which it still fails."""
    for each in simplify:
        simpler = each(scenario)
        if simpler != scenario and fails(simpler):
            scenario = simpler
    return scenario


def _simpler(scenario: Scenario, fails: Fails) -> Scenario:
    """Simpler workers, settings and engines, and earlier events."""
    return _adopted(
        scenario,
        fails,
        lambda of: _of_pair(of, prefill_every=1, decode_every=1),
        lambda of: _of_pair(of, network=PROMPT),
        lambda of: _of_pair(of, network=_without_delays(of)),
        lambda of: _of_requests(of, at_tick=0, kept_ticks=0),
        lambda of: replace(of, workers=Workers(latest_steps=0)),
        lambda of: replace(of, workers=Workers()),
        lambda of: replace(of, workers=replace(of.workers, load_failures=0.0)),
        lambda of: replace(of, drafts=0),
        lambda of: replace(of, settings={k: v for k, v in of.settings.items() if k != "scheduling_policy"}),
        lambda of: replace(of, seed=0),
        lambda of: _of_arrivals(of, priority=0),
        lambda of: _of_arrivals(of, output=()),
        lambda of: _of_arrivals(of, at_step=0),
        _sooner,
    )


PROMPT = Schedule(transfer_ticks=0, message_ticks=0, handshake_ticks=0)
"""A network without delays."""


def _of_pair(scenario: Scenario, **changes: Any) -> Scenario:
    return scenario if scenario.pair is None else replace(scenario, pair=replace(scenario.pair, **changes))


def _without_delays(scenario: Scenario) -> Schedule:
    """The scenario's network without its delays, but with its failing transfers."""
    network = Schedule() if scenario.pair is None else scenario.pair.network
    return network if network == PROMPT else replace(PROMPT, failing=network.failing, seed=network.seed)


def _of_requests(scenario: Scenario, **changes: Any) -> Scenario:
    requests = () if scenario.pair is None else scenario.pair.requests
    return _of_pair(scenario, requests=tuple(replace(each, **changes) for each in requests))


def _of_arrivals(scenario: Scenario, **changes: Any) -> Scenario:
    return replace(scenario, arrivals=tuple(replace(each, **changes) for each in scenario.arrivals))


def _sooner(scenario: Scenario) -> Scenario:
    """The scenario with all events earlier by the same number of steps."""
    events: list[Any] = [*scenario.arrivals, *scenario.resets, *scenario.aborts]
    by = min((each.at_step for each in events), default=0)
    moved: dict[str, Any] = {
        name: tuple(replace(each, at_step=each.at_step - by) for each in getattr(scenario, name))
        for name in ("arrivals", "resets", "aborts")
    }
    return replace(scenario, **moved)


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


def _plainly_named(scenario: Scenario) -> Scenario:
    """The scenario with plain names of requests and segments; a segment's name is the seed of its tokens."""
    names: dict[str, str] = {}
    ids = {arrival.id: f"r-{number}" for number, arrival in enumerate(scenario.arrivals)}

    def plain(segments: Sequence[Segment]) -> tuple[Segment, ...]:
        return tuple((names.setdefault(seed, f"part-{len(names)}"), count) for seed, count in segments)

    return replace(
        scenario,
        arrivals=tuple(
            replace(each, id=ids[each.id], prompt=plain(each.prompt), output=plain(each.output))
            for each in scenario.arrivals
        ),
        aborts=tuple(replace(each, id=ids[each.id]) for each in scenario.aborts),
    )


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
