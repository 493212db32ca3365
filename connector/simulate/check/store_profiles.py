"""Profiles for what a store holds: that it is full and stays as large as it was, that its keys tell prefixes apart, and that
what a request generated is stored as well as its prompt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from kvtrail.connector.simulate.scenario import KV_EVENTS, Abort, Arrival, CachesReset, Scenario, Segment, When, Workers
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE

LONGEST = 1000
"""Tokens of a request at most; the tiny model ends at 1,024."""


def room(rng: random.Random) -> Scenario:
    """A store that is full all the time: more prefixes than a small one holds, and every other one comes again at once.
    Equal prompts come in one step, and some clients leave while they wait or load."""
    heads = [_segment(rng, BLOCK_SIZE * rng.randrange(8, 25)) for _ in range(9)]
    head = heads[0]
    arrivals: list[Arrival] = []
    aborts: list[Abort] = []
    at_step = 0
    for number in range(28):
        if rng.random() < 0.5:
            head = rng.choice(heads)
        tail = () if rng.random() < 0.3 else (_segment(rng, rng.randrange(20, 200)),)
        for twin in range(rng.choice((1, 1, 2, 3))):
            arrival = Arrival(f"r-{number}-{twin}", (head, *tail), rng.randrange(1, 6), at_step)
            arrivals.append(arrival)
            if rng.random() < 0.4:
                aborts.append(Abort(arrival.id, at_step, rng.choice((None, When.MATCHED, *3 * (When.LOADING,)))))
        at_step += rng.randrange(12)
    resets = [
        CachesReset(step, running=rng.random() < 0.3, connector=rng.random() < 0.05) for step in range(10, at_step, 10)
    ]
    for _ in range(2):  # the second one comes when the store is filled in part
        step = rng.randrange(at_step)
        resets += [CachesReset(each, connector=True, prefix_cache=False) for each in (step, step + rng.randrange(2, 9))]
    return Scenario(
        arrivals=tuple(arrivals),
        aborts=tuple(aborts),
        resets=tuple(resets),
        num_blocks=rng.choice((64, 100)),
        settings={"max_num_batched_tokens": rng.choice((96, 512, 2048))},
        workers=Workers(latest_steps=rng.choice((0, 4, 8)), seed=rng.randrange(10**6)),
        seed=rng.randrange(10**6),
    )


def kv_events(rng: random.Random) -> Scenario:
    """A store that is full all the time, and that reports what it gains and loses, as a router asks of it. No two resets come
    in one step: `room` has such."""
    scenario = room(rng)
    resets = {each.at_step: each for each in scenario.resets}
    return replace(scenario, resets=tuple(resets.values()), settings={**scenario.settings, **KV_EVENTS})


def shared_loads(rng: random.Random) -> Scenario:
    """Two or three requests load one short prefix, and their loads begin and end at different times; meanwhile prompts come
    that fill a small store, which evicts for them what nobody needs any more."""
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    for number in range(6):
        at_step, head = 90 * number, _segment(rng, BLOCK_SIZE * rng.randrange(2, 6) + 1)
        arrivals.append(Arrival(f"stores-{number}", (head,), 1, at_step))
        at_step += 30
        resets.append(CachesReset(at_step))
        for load in range(rng.randrange(2, 4)):
            at_step += rng.randrange(1, 3)
            arrivals.append(Arrival(f"loads-{number}-{load}", (head, _segment(rng, 5)), 1, at_step))
        for new in range(3):
            at_step += rng.randrange(1, 5)
            prompt = (_segment(rng, BLOCK_SIZE * rng.randrange(8, 20) + 1),)
            arrivals.append(Arrival(f"new-{number}-{new}", prompt, 1, at_step))
    return Scenario(
        arrivals=tuple(arrivals),
        resets=tuple(resets),
        num_blocks=rng.choice((64, 100)),
        settings={"max_num_batched_tokens": 1000},
        workers=Workers(latest_steps=4, seed=rng.randrange(10**6)),
        seed=rng.randrange(10**6),
    )


def many_prefixes(rng: random.Random) -> Scenario:
    """Seven hundred short prompts of one length that share nothing: a key that does not tell two of them apart finds what
    another prompt has stored."""
    length = rng.choice((2 * BLOCK_SIZE, 4 * BLOCK_SIZE)) + 1
    arrivals = tuple(Arrival(f"p-{n}", (_segment(rng, length),), 1, n // 8) for n in range(700))
    settings = {"max_num_batched_tokens": 2048}
    return Scenario(arrivals=arrivals, num_blocks=96, settings=settings, seed=rng.randrange(10**6))


def conversation(rng: random.Random) -> Scenario:
    """Conversations: each turn extends the last one and its answer. Blocks are scarce, so some answers are computed in two
    parts, with a preemption between them, and the next turn loads them."""
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    for talk in range(rng.randrange(4, 7)):
        history: tuple[Segment, ...] = (_segment(rng, rng.randrange(60, 250)),)
        at_step = rng.randrange(30)
        for turn in range(4):
            answer = _segment(rng, rng.randrange(20, 90))
            arrival = Arrival(f"talk-{talk}-{turn}", history, answer[1], at_step, output=(answer,))
            if arrival.length + answer[1] > LONGEST:
                break
            arrivals.append(arrival)
            history = (*history, answer, _segment(rng, rng.randrange(8, 80)))
            at_step += answer[1] + rng.randrange(20, 60)
            resets.append(CachesReset(at_step - 1, running=rng.random() < 0.2))
    return Scenario(
        arrivals=tuple(arrivals),
        resets=tuple(resets),
        num_blocks=rng.randrange(36, 64),
        settings={"max_num_batched_tokens": rng.choice((48, 200))},
        workers=_workers(rng),
        seed=rng.randrange(10**6),
    )


FULL, EVENTS, SHARED = "room", "kv-events", "shared-loads"
SMALL = (FULL, EVENTS, SHARED)
"""The profiles for which a known connector gets a small store (`settings_when_full`)."""
STORE_PROFILES: dict[str, Callable[[random.Random], Scenario]] = {
    FULL: room,
    "many-prefixes": many_prefixes,
    "conversation": conversation,
}
"""The profiles of stores."""


def _segment(rng: random.Random, count: int) -> Segment:
    return (f"{rng.randrange(10**9)}", count)


def _workers(rng: random.Random) -> Workers:
    return Workers(latest_steps=rng.choice((0, 4)), seed=rng.randrange(10**6))
