"""Scenarios of two engines: requests that one of them prefills and the other one decodes, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from kvtrail.connector.known.nixl.stand_in.network import Schedule
from kvtrail.connector.simulate.scenario import Arrival, Mistake, Pair, Point, Request, Return, Scenario, Workers
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE
from kvtrail.tracer.events.cache_groups import CacheGroup

OVERDUE_TICKS = 90
"""For at least this long a router keeps what it should have used long ago; the lease is shorter then."""
KEPT_LONG = (Mistake.NAMED_ALIKE, Mistake.OVERDUE)
"""With these the router waits for a long time before it asks the engine that decodes."""


def paired(
    *,
    arrivals: tuple[Arrival, ...] = (),
    num_blocks: int = 48,
    groups: tuple[CacheGroup, ...] = (),
    workers: Workers = Workers(latest_steps=2),  # noqa: B008 - frozen
    recompute: bool = True,
    seed: int = 0,
    **of_pair: Any,
) -> Scenario:
    """A scenario of two engines; `of_pair` are the fields of its `Pair`."""
    return Scenario(
        arrivals=arrivals,
        num_blocks=num_blocks,
        groups=groups,
        workers=workers,
        recompute=recompute,
        seed=seed,
        pair=Pair(**of_pair),
    )


def with_pair(scenario: Scenario, **changes: Any) -> Scenario:
    """A scenario of two engines with other fields of its `Pair`."""
    assert scenario.pair is not None
    return replace(scenario, pair=replace(scenario.pair, **changes))


def drawn(
    seed: int,
    *,
    mistakes: tuple[Mistake, ...] = (),
    lost: float = 0.0,
    repeated: float = 0.0,
    failing: float = 0.0,
    dies: bool = False,
    returns: Return | None = None,
    decode_dies: bool = False,
    same_ids: bool = False,
    requests: int = 12,
) -> Scenario:
    """A scenario in which requests share prefixes, queue, preempt each other and are aborted, messages are late and out of
    order, and now and then an engine is busy. Two requests meet each of the `mistakes`; without those and losses all is
    legal. With `dies` the engine that prefills is killed in between, and `returns`; with `decode_dies` the other one. With
    `same_ids` some clients have chosen one id."""
    rng = random.Random(f"pair {seed}")
    of_clients = [_request(number, rng) for number in range(requests)]
    for mistake in mistakes:
        of_clients = _planted(of_clients, mistake, rng)
    if same_ids:
        of_clients = [replace(each, id=f"r-{number // 3}") for number, each in enumerate(of_clients)]
    overdue = Mistake.OVERDUE in mistakes
    network = Schedule(
        seed=seed,
        transfer_ticks=rng.choice((0, 2, 6)),
        message_ticks=rng.choice((0, 3, 10)),
        handshake_ticks=rng.choice((0, 4)),
        lost=lost,
        repeated=repeated,
        failing=failing,
    )
    prefills = tuple(_beside("p", number, rng) for number in range(30 if overdue else rng.randrange(6)))
    decodes = tuple(_beside("d", number, rng) for number in range(rng.randrange(6)))
    prefill_every, decode_every = rng.choice((1, 1, 3)), rng.choice((1, 1, 2))
    prefill_blocks, decode_blocks = rng.choice((28, 48)), rng.choice((28, 48))
    return paired(
        arrivals=prefills,
        num_blocks=prefill_blocks,
        recompute=rng.random() < 0.7,
        workers=Workers(latest_steps=rng.choice((0, 2)), seed=seed),
        seed=seed,
        requests=tuple(of_clients),
        decodes=decodes,
        prefill_dies_at=10 + seed % 70 if dies or returns is not None else None,
        prefill_returns=returns,
        decode_dies_at=10 + seed * 7 % 70 if decode_dies else None,
        prefill_every=prefill_every,
        decode_every=decode_every,
        decode_blocks=decode_blocks,
        lease_s=6 if overdue else 30,
        network=network,
    )


def _request(number: int, rng: random.Random) -> Request:
    shared = (f"shared {rng.randrange(3)}", rng.choice((0, 0, 40, 96, 130)))
    own = (f"own {number}", rng.randrange(1, 200))
    return Request(
        id=f"r-{number}",
        prompt=(shared, own),
        max_tokens=rng.choice((1, 2, 8, 40)),
        at_tick=rng.randrange(60),
        kept_ticks=rng.choice((0, 0, 5, 20)),
        leaves=rng.choice(list(Point)) if rng.random() < 0.3 else None,
    )


def _beside(name: str, number: int, rng: random.Random) -> Arrival:
    prompt = ((f"{name} {number}", rng.randrange(30, 300)),)
    return Arrival(f"{name}-{number}", prompt, rng.choice((1, 10, 60)), at_step=rng.randrange(150))


def _planted(requests: list[Request], mistake: Mistake, rng: random.Random) -> list[Request]:
    """Two requests meet a mistake; nobody disconnects from them."""
    free = [at for at, each in enumerate(requests) if each.mistake is None]
    chosen = rng.sample(free, k=2)
    for at in chosen:
        each = requests[at]
        own = 70 + rng.randrange(100)
        own += (each.prompt[0][1] + own) % BLOCK_SIZE == 1  # else a part of it would end in no block of its own
        prompt = (each.prompt[0], (each.prompt[1][0], own))
        kept_ticks = OVERDUE_TICKS + rng.randrange(30) if mistake in KEPT_LONG else each.kept_ticks
        requests[at] = replace(each, prompt=prompt, leaves=None, mistake=mistake, kept_ticks=kept_ticks)
    return requests
