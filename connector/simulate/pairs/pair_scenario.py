"""Scenarios of two engines: requests that one of them prefills and the other one decodes, drawn from a seed."""

from __future__ import annotations

import random

from kvtrail.connector.known.nixl.stand_in.network import Schedule
from kvtrail.connector.simulate.scenario import Arrival, Pair, Point, Request, Scenario, Workers


def drawn(seed: int, *, failing: float = 0.0, ranks: tuple[int, int] = (1, 1)) -> Scenario:
    """A valid scenario in which requests share prefixes, queue, preempt each other and are aborted, messages are late and out
    of order, and engines are busy at times. `failing` is the share of transfers that fail, and `ranks` are the numbers of
    tensor-parallel ranks of the prefill engine and of the decoding engine."""
    rng = random.Random(f"pair {seed}")
    requests = tuple(request(number, rng) for number in range(12))
    network = drawn_network(seed, rng, failing=failing)
    prefills = tuple(beside("p", number, rng) for number in range(rng.randrange(6)))
    decodes = tuple(beside("d", number, rng) for number in range(rng.randrange(6)))
    prefill_every, decode_every = rng.choice((1, 1, 3)), rng.choice((1, 1, 2))
    prefill_blocks, decode_blocks = rng.choice((28, 48)), rng.choice((28, 48))
    return Scenario(
        arrivals=prefills,
        num_blocks=prefill_blocks,
        recompute=rng.random() < 0.7,
        workers=Workers(latest_steps=rng.choice((0, 2)), seed=seed),
        seed=seed,
        pair=Pair(
            requests=requests,
            decodes=decodes,
            prefill_every=prefill_every,
            decode_every=decode_every,
            decode_blocks=decode_blocks,
            prefill_ranks=ranks[0],
            decode_ranks=ranks[1],
            network=network,
        ),
    )


def drawn_network(
    seed: int, rng: random.Random, *, failing: float, lost: float = 0.0, repeated: float = 0.0
) -> Schedule:
    """The network of a drawn scenario, with short or long delays."""
    return Schedule(
        seed=seed,
        transfer_ticks=rng.choice((0, 2, 6)),
        message_ticks=rng.choice((0, 3, 10)),
        handshake_ticks=rng.choice((0, 4)),
        lost=lost,
        repeated=repeated,
        failing=failing,
    )


def request(number: int, rng: random.Random) -> Request:
    """A request to both engines."""
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


def beside(name: str, number: int, rng: random.Random) -> Arrival:
    """A request to a single engine."""
    prompt = ((f"{name} {number}", rng.randrange(30, 300)),)
    return Arrival(f"{name}-{number}", prompt, rng.choice((1, 10, 60)), at_step=rng.randrange(150))
