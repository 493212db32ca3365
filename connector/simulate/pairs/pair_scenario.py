"""A scenario for two engines: requests that one of them prefills and the other one decodes, as data or drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from kvtrail.connector.known.nixl.stand_in.network import Schedule
from kvtrail.connector.simulate.scenario import Arrival, Segment, arrival_of
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE
from kvtrail.tracer.events.cache_groups import CacheGroup

RETURNS_TICKS = 5
"""How many ticks an engine that was killed is away."""
OVERDUE_TICKS = 90
"""For at least this long a router keeps what it should have used long ago; the lease is shorter then."""


class Point(StrEnum):
    """Where a request is when its client disconnects."""

    PREFILLING = "prefilling"
    HANDED_OVER = "handed over"
    """The engine that prefills has ended it, and the router has not yet asked the other one."""
    QUEUED = "queued"
    """In the other engine's queue."""
    LOADING = "loading"
    DECODING = "decoding"


class Mistake(StrEnum):
    """What a router does wrong with what an engine hands over."""

    EXCHANGED = "exchanged"
    """It gives two requests each other's."""
    TWICE = "twice"
    """It asks the engine that decodes twice with the same."""
    SHORT = "short"
    """The engine that prefills got a part of the prompt, which ends in the same block."""
    CUT = "cut"
    """The engine that prefills got a part of the prompt, which ends in an earlier block."""
    ALTERED = "altered"
    """It changes the last block id."""
    NAMED_ALIKE = "named alike"
    """It gives two requests one `transfer_id`, and keeps them at the same time."""
    OVERDUE = "overdue"
    """It keeps it until the lease has run out and the blocks are another request's."""


KEPT_LONG = (Mistake.NAMED_ALIKE, Mistake.OVERDUE)
"""With these the router waits for a long time before it asks the engine that decodes."""


class Return(StrEnum):
    """How an engine that was killed comes back, at its old address."""

    SAME = "same"
    """With the engine id that it had, as where that is configured."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request, to both engines.

    Attributes:
        id: the client's; engines append a suffix of their own.
        at_tick: the router asks the engine that prefills before this tick.
        kept_ticks: how long it then keeps what that engine returns.
        leaves: where its client disconnects, if it does.
    """

    id: str
    prompt: tuple[Segment, ...]
    max_tokens: int = 4
    at_tick: int = 0
    kept_ticks: int = 0
    leaves: Point | None = None
    mistake: Mistake | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairScenario:
    """Two engines, their requests, and the network between them.

    Attributes:
        prefills, decodes: what else each of the two engines is asked; steps are ticks.
        prefill_every, decode_every: how many ticks there are for one step of each.
        prefill_blocks, decode_blocks: of their pools.
        prefill_dies_at, decode_dies_at: the tick in which that engine is killed; None if it lives.
        prefill_returns: how the engine that prefills comes back after that, `RETURNS_TICKS` later; None if it does not.
        tick_s: seconds of a tick, for leases.
        lease_s: the lease of what is handed over.
        groups: the model's KV cache groups, as for one engine.
        prefill_ranks, decode_ranks: tensor-parallel ranks of each engine.
        recompute: whether a load that failed is computed again; else its request fails.
    """

    requests: tuple[Request, ...]
    prefills: tuple[Arrival, ...] = ()
    decodes: tuple[Arrival, ...] = ()
    prefill_every: int = 1
    decode_every: int = 1
    prefill_dies_at: int | None = None
    prefill_returns: Return | None = None
    decode_dies_at: int | None = None
    prefill_blocks: int = 48
    decode_blocks: int = 48
    tick_s: float = 0.1
    lease_s: int = 30
    recompute: bool = True
    groups: tuple[CacheGroup, ...] = ()
    prefill_ranks: int = 1
    decode_ranks: int = 1
    network: Schedule = field(default_factory=Schedule)
    latest_steps: int = 2
    seed: int = 0

    @property
    def arrivals(self) -> tuple[Request | Arrival, ...]:
        """All requests of both engines."""
        return (*self.requests, *self.prefills, *self.decodes)

    @property
    def longest_ticks(self) -> int:
        """If nothing happens for so long, what the scenario itself still has to do or to wait for is over."""
        begin = [each.at_tick for each in self.requests] + [each.at_step for each in (*self.prefills, *self.decodes)]
        died = [each + RETURNS_TICKS for each in (self.prefill_dies_at, self.decode_dies_at) if each is not None]
        kept = [each.kept_ticks for each in self.requests]
        network = self.network.transfer_ticks + self.network.message_ticks + self.network.handshake_ticks
        return max([*begin, *died, *kept], default=0) + network

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The scenario that `as_dict` gave."""
        known = dict(data)
        known["requests"] = tuple(_request_of(each) for each in known["requests"])
        for name in ("prefills", "decodes"):
            known[name] = tuple(arrival_of(each) for each in known[name])
        known["prefill_returns"] = known["prefill_returns"] and Return(known["prefill_returns"])
        known["groups"] = tuple(CacheGroup(**each) for each in known["groups"])
        known["network"] = Schedule(**known["network"])
        return cls(**known)


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
) -> PairScenario:
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
    return PairScenario(
        requests=tuple(of_clients),
        prefills=tuple(_beside("p", number, rng) for number in range(30 if overdue else rng.randrange(6))),
        decodes=tuple(_beside("d", number, rng) for number in range(rng.randrange(6))),
        prefill_dies_at=10 + seed % 70 if dies or returns is not None else None,
        prefill_returns=returns,
        decode_dies_at=10 + seed * 7 % 70 if decode_dies else None,
        prefill_every=rng.choice((1, 1, 3)),
        decode_every=rng.choice((1, 1, 2)),
        prefill_blocks=rng.choice((28, 48)),
        decode_blocks=rng.choice((28, 48)),
        lease_s=6 if overdue else 30,
        recompute=rng.random() < 0.7,
        network=network,
        latest_steps=rng.choice((0, 2)),
        seed=seed,
    )


def _request_of(data: Mapping[str, Any]) -> Request:
    leaves, mistake = data["leaves"], data["mistake"]
    return Request(
        **{
            **data,
            "prompt": tuple((str(seed), int(count)) for seed, count in data["prompt"]),
            "leaves": leaves and Point(leaves),
            "mistake": mistake and Mistake(mistake),
        }
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
