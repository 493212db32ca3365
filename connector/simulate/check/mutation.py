"""Mutations of a scenario: changes that lead a run where another one nearly was.

A mutation of a valid scenario is a valid one: vLLM can run it without a connector, and it asks for nothing that the profiles
avoid since vLLM itself fails there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvtrail.connector.simulate.check.profiles import BLOCK_SIZE, MAX_LENGTH
from kvtrail.connector.simulate.scenario import Abort, Arrival, CachesReset, Scenario, Segment, When, beginning

BOUNDARIES = (BLOCK_SIZE, 2 * BLOCK_SIZE, 4 * BLOCK_SIZE, 8 * BLOCK_SIZE)
"""Sizes of blocks and chunks, in tokens: prompts end near their multiples."""
BATCHES = (48, 64, 96, 200, 400)
"""Tokens of a step at most."""
MOST_ARRIVALS = 120
"""Requests of a mutated scenario; beyond that it takes longer than it is worth."""
MOST_CHANGES = 16
MOST_SPLICED = 40
"""Requests of another scenario that come in at once."""
MOST_ABORTED = 4
"""Requests that one change aborts."""
NEAR = 3
"""Steps by which something is moved."""
SPARE_BLOCKS = 16
"""Blocks of a pool beyond those of its longest request; a few are always held by somebody."""
SPARE_TOKENS = 4
MOST_STEPS = 20_000
"""A profile may end a run that would go on; a mutation of it takes what it takes."""


def mutated(scenario: Scenario, other: Scenario, rng: random.Random, *, busy: Sequence[int] = ()) -> Scenario:
    """Changes of a scenario; `other` may be spliced into it. `busy` are the steps in which a transfer was open when the
    scenario ran. The same arguments give the same result."""
    for _ in range(rng.randrange(1, MOST_CHANGES + 1)):
        change = rng.choice(_CHANGES)
        scenario = change(scenario, other, rng, busy)
    return _valid(scenario)


_Change = Callable[[Scenario, Scenario, random.Random, Sequence[int]], Scenario]


def _splice(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """Some consecutive requests of another scenario come in this one, with what happens to them."""
    arrivals = sorted(other.arrivals, key=lambda each: each.at_step)
    begin = rng.randrange(len(arrivals))
    taken = arrivals[begin : begin + rng.randrange(1, MOST_SPLICED + 1)]
    shift = _moment(scenario, rng, busy) - taken[0].at_step
    until = taken[-1].at_step + NEAR
    ids = {each.id for each in taken}

    def later(each: Any) -> Any:
        return replace(each, at_step=max(0, each.at_step + shift))

    hands_on = any(each.handed_on for each in scenario.arrivals)
    come = (replace(later(each), handed_on=each.handed_on and hands_on) for each in taken)
    return replace(
        scenario,
        arrivals=(*scenario.arrivals, *come),
        aborts=(*scenario.aborts, *(later(each) for each in other.aborts if each.id in ids)),
        resets=(*scenario.resets, *(later(each) for each in other.resets if taken[0].at_step <= each.at_step <= until)),
    )


def _resize(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """A prompt ends at a boundary of blocks, or a token before or behind it."""
    size = rng.choice(BOUNDARIES)

    def resized(arrival: Arrival) -> Arrival:
        length = max(1, round(arrival.length / size) + rng.choice((-1, 0, 0, 1))) * size + rng.choice((-1, 0, 1))
        return replace(arrival, prompt=_of_length(arrival.prompt, length, rng))

    return _with_one(scenario, rng, resized)


def _generate(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """A request generates another number of tokens."""
    return _with_one(
        scenario, rng, lambda arrival: replace(arrival, max_tokens=rng.choice((1, 2, 8, BLOCK_SIZE + 1, 80)))
    )


def _move(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """A request, an abort or a reset comes a little sooner or later, or while a transfer is open."""

    def moved(at_step: int) -> int:
        if busy and rng.random() < 0.5:
            return max(0, rng.choice(busy) + rng.choice((-1, 0, 1)))
        return max(0, at_step + rng.choice((-NEAR, -1, 1, NEAR)))

    happenings = [name for name in ("arrivals", "aborts", "resets") if getattr(scenario, name)]
    name = rng.choice(happenings)
    held = list(getattr(scenario, name))
    number = rng.randrange(len(held))
    held[number] = replace(held[number], at_step=moved(held[number].at_step))
    return _with_held(scenario, name, held)


def _repeat(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """A prompt comes again: as it is, longer, or shorter; in the same step, soon, or at the end."""
    arrival = rng.choice(scenario.arrivals)
    prompt = arrival.prompt
    how = rng.randrange(4)
    if how == 1:
        prompt = (*prompt, _fresh(rng, rng.choice((1, BLOCK_SIZE, 150))))
    elif how == 2:
        prompt = _of_length(prompt, max(1, arrival.length - rng.choice((1, BLOCK_SIZE, 4 * BLOCK_SIZE))), rng)
    last = max(each.at_step for each in scenario.arrivals)
    at_step = rng.choice((arrival.at_step, arrival.at_step + NEAR, _moment(scenario, rng, busy), last + 40))
    again = replace(arrival, id=f"{arrival.id}-m{rng.randrange(1000)}", prompt=prompt, at_step=at_step)
    return replace(scenario, arrivals=(*scenario.arrivals, again))


def _reuse_id(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """A request comes under the id of another one, when that has ended."""
    name = rng.choice(scenario.arrivals).id
    return _with_one(scenario, rng, lambda arrival: replace(arrival, id=name))


def _abort(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """Some requests are aborted: at any moment, or in a state in which the connector has something to give back, the first
    time that they are in it or a later one."""
    when = rng.choice((None, When.MATCHED, When.LOADING, When.PREEMPTED))
    latest = rng.choice((0, 20, 100) if when else (20,))
    gone = rng.sample(scenario.arrivals, min(rng.randrange(1, MOST_ABORTED + 1), len(scenario.arrivals)))
    aborts = (Abort(each.id, each.at_step + rng.randrange(latest + 1), when) for each in gone)
    return replace(scenario, aborts=(*scenario.aborts, *aborts))


def _reset(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """A cache is reset: mostly vLLM's, so that what comes again is loaded."""
    at_step = _moment(scenario, rng, busy)
    if rng.random() < 0.7:
        return replace(scenario, resets=(*scenario.resets, CachesReset(at_step, running=rng.random() < 0.3)))
    when = rng.choice((None, When.MATCHED, When.LOADING))
    reset = CachesReset(at_step, connector=True, prefix_cache=rng.random() < 0.5, when=when)
    return replace(scenario, resets=(*scenario.resets, reset))


def _drop(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """Fewer requests, aborts or resets."""
    name = rng.choice(("arrivals", "arrivals", "aborts", "resets"))
    held = getattr(scenario, name)
    if len(held) < 2 + (name == "arrivals"):
        return scenario
    begin = rng.randrange(len(held))
    end = begin + rng.randrange(1, 1 + max(1, len(held) // 3))
    return _with_held(scenario, name, held[:begin] + held[end:] or held[:1])


def _workers(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """Transfers take longer or end at once, in another order."""
    workers = replace(scenario.workers, latest_steps=rng.choice((0, 1, 4, 8, 25)), seed=rng.randrange(10**6))
    return replace(scenario, workers=workers)


def _pool(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """More or fewer blocks."""
    return replace(scenario, num_blocks=int(scenario.num_blocks * rng.choice((0.7, 0.85, 1.2, 1.5))))


def _batch(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """Steps of other sizes."""
    return replace(scenario, settings={**scenario.settings, "max_num_batched_tokens": rng.choice(BATCHES)})


def _salt(scenario: Scenario, other: Scenario, rng: random.Random, busy: Sequence[int]) -> Scenario:
    """The same tokens with another cache salt."""
    return _with_one(scenario, rng, lambda arrival: replace(arrival, salt=rng.choice(("", "one", "other"))))


_CHANGES: Sequence[_Change] = (
    *(2 * (_splice, _resize, _move, _repeat, _abort, _reset)),
    _generate,
    _reuse_id,
    _drop,
    _workers,
    _pool,
    _batch,
    _salt,
)  # fmt: skip
"""Those that come twice are chosen twice as often."""


def _valid(scenario: Scenario) -> Scenario:
    """The scenario without what vLLM cannot run, or what it does not survive by itself.

    Where loads fail, vLLM 0.32 keeps the failed blocks of a load within a step in its prefix cache until the request has
    computed them. Nobody is aborted there in between, and the pool has room for all, so that nobody is preempted.
    """
    arrivals = tuple(map(_fitting, scenario.arrivals[-MOST_ARRIVALS:]))
    ids = {arrival.id for arrival in arrivals}
    aborts = tuple(each for each in scenario.aborts if each.id in ids and each.when is not When.FAILED_WITHIN)
    lengths = [arrival.length + arrival.max_tokens + scenario.drafts for arrival in arrivals]
    num_blocks = max(scenario.num_blocks, _blocks(scenario, max(lengths)) + SPARE_BLOCKS)
    if scenario.workers.load_failures or scenario.workers.fails:
        aborts = tuple(each for each in aborts if each.when is When.FAILED)
        num_blocks = max(num_blocks, sum(_blocks(scenario, length) for length in lengths) + SPARE_BLOCKS)
    return replace(
        scenario,
        arrivals=arrivals,
        aborts=aborts,
        num_blocks=num_blocks,
        most_steps=max(scenario.most_steps, MOST_STEPS),
    )


def _fitting(arrival: Arrival) -> Arrival:
    """The request with a prompt that leaves room for what it generates."""
    most = MAX_LENGTH - SPARE_TOKENS - arrival.max_tokens
    return arrival if arrival.length <= most else replace(arrival, prompt=beginning(arrival.prompt, most))


def _blocks(scenario: Scenario, length: int) -> int:
    """Blocks for `length` tokens, of all KV cache groups."""
    sizes = [group.block_size or scenario.block_size for group in scenario.groups] or [scenario.block_size]
    return sum(-(-length // size) + 1 for size in sizes)


def _with_one(scenario: Scenario, rng: random.Random, change: Callable[[Arrival], Arrival]) -> Scenario:
    arrivals = list(scenario.arrivals)
    number = rng.randrange(len(arrivals))
    arrivals[number] = change(arrivals[number])
    return replace(scenario, arrivals=tuple(arrivals))


def _with_held(scenario: Scenario, name: str, held: Sequence[Any]) -> Scenario:
    changed: dict[str, Any] = {name: tuple(held)}
    return replace(scenario, **changed)


def _moment(scenario: Scenario, rng: random.Random, busy: Sequence[int]) -> int:
    """A step in which a transfer was open, or any other in which something may happen."""
    if busy and rng.random() < 0.5:
        return rng.choice(busy)
    return rng.randrange(max(each.at_step for each in scenario.arrivals) + 40)


def _of_length(prompt: tuple[Segment, ...], length: int, rng: random.Random) -> tuple[Segment, ...]:
    """The prompt, shortened or with other tokens behind it."""
    missing = length - sum(count for _, count in prompt)
    return (*prompt, _fresh(rng, missing)) if missing > 0 else beginning(prompt, length)


def _fresh(rng: random.Random, count: int) -> Segment:
    return (f"{rng.randrange(10**9)}", count)
