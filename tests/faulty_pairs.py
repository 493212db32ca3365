"""Two bare engines, of which one hands over to the other, with what the simulator itself never does: a router that makes
mistakes, engines that are killed, and a network that loses reports. And what really happened, to compare findings with."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, cast

from kvtrail.connector.known.nixl.stand_in.network import Network
from kvtrail.connector.recording import recorder
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.pairs import pairs
from kvtrail.connector.simulate.pairs.engine import DECODE, PREFILL, Engine
from kvtrail.connector.simulate.pairs.pair_scenario import beside, drawn_network, request
from kvtrail.connector.simulate.pairs.router import ASKED_TO_PREFILL, Router, Served
from kvtrail.connector.simulate.run import Played
from kvtrail.connector.simulate.scenario import Arrival, Pair, Point, Scenario, Workers
from kvtrail.connector.simulate.scenario import Request as PlainRequest
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE
from kvtrail.tracer.events.cache_groups import CacheGroup
from kvtrail.tracer.events.events import Event, Free, Read, Sent

OVERDUE_TICKS = 90
"""For at least this long a router keeps what it should have used long ago; the lease is shorter then."""
RETURNS_TICKS = 5
"""How many ticks an engine that was killed is away."""
AGAIN_TICKS = 8
"""Within this many ticks a router that makes the mistake asks a second time."""
KILLED = "killed"
"""The error of an engine that died of nothing of its own."""
AGAIN = "prefill again"


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
class Request(PlainRequest):
    """A request with which the router may make a mistake."""

    mistake: Mistake | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyPair(Pair):
    """Two engines that may be killed.

    Attributes:
        prefill_dies_at, decode_dies_at: the tick in which that engine is killed; None if it lives.
        prefill_returns: how the engine that prefills comes back after that, `RETURNS_TICKS` later; None if it does not.
    """

    prefill_dies_at: int | None = None
    prefill_returns: Return | None = None
    decode_dies_at: int | None = None


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
    """A scenario of two engines; `of_pair` are the fields of its `FaultyPair`."""
    return Scenario(
        arrivals=arrivals,
        num_blocks=num_blocks,
        groups=groups,
        workers=workers,
        recompute=recompute,
        seed=seed,
        pair=FaultyPair(**of_pair),
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
    """The simulator's scenario of this seed, with faults: two requests meet each of the `mistakes`; with `dies` the engine
    that prefills is killed in between, and `returns`; with `decode_dies` the other one. With `same_ids` some clients have
    chosen one id."""
    rng = random.Random(f"pair {seed}")
    of_clients = [_as_planted(request(number, rng)) for number in range(requests)]
    for mistake in mistakes:
        of_clients = _planted(of_clients, mistake, rng)
    if same_ids:
        of_clients = [replace(each, id=f"r-{number // 3}") for number, each in enumerate(of_clients)]
    overdue = Mistake.OVERDUE in mistakes
    network = drawn_network(seed, rng, failing=failing, lost=lost, repeated=repeated)
    prefills = tuple(beside("p", number, rng) for number in range(30 if overdue else rng.randrange(6)))
    decodes = tuple(beside("d", number, rng) for number in range(rng.randrange(6)))
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


def _as_planted(plain: PlainRequest) -> Request:
    return Request(**{each.name: getattr(plain, each.name) for each in fields(plain)})


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


class FaultyRouter(Router):
    """A router that makes the mistakes that its requests ask for.

    Attributes:
        answered: the clients' ids of the requests that were decoded to their end.
        planted: the clients' ids of the requests that met the mistake of theirs.
        left: where each client disconnected that did, by its id.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.answered: set[str] = set()
        self.planted: set[str] = set()
        self.left: dict[str, Point] = {}
        self._later: list[tuple[int, Callable[[], None]]] = []
        super().__init__(*arguments, **named)

    def prefill_with(self, engine: Engine) -> None:
        """From now on another engine prefills: the one that did has died."""
        self._prefill = engine
        engine.stage.on_outputs.append(self._prefilled)

    @property
    def is_idle(self) -> bool:
        return not self._later and super().is_idle

    def _ask_to_prefill(self, served: Served, request_id: str, prompt: list[int]) -> None:
        whole = len(prompt)
        asked: dict[str, Any] = {**ASKED_TO_PREFILL}
        match _mistake(served):
            case Mistake.SHORT:
                prompt = prompt[: (whole - 1) // BLOCK_SIZE * BLOCK_SIZE + 1]
            case Mistake.CUT:
                prompt = prompt[: whole - BLOCK_SIZE]
            case Mistake.NAMED_ALIKE:
                asked = asked | {"transfer_id": "alike"}
        self._prefill.ask(request_id, prompt, 1, asked)

    def _hand_on(self, due: Sequence[Served]) -> None:
        exchanged = [each for each in due if _mistake(each) is Mistake.EXCHANGED]
        super()._hand_on([each for each in due if each not in exchanged])
        for one, other in zip(exchanged[::2], exchanged[1::2], strict=False):
            self._ask_to_decode(one, other.returned)
            self._ask_to_decode(other, one.returned)
        if len(exchanged) % 2 and self._alone(exchanged[-1]):
            super()._ask_to_decode(exchanged[-1], exchanged[-1].returned)
        for later in [each for each in self._later if each[0] <= self._tick]:
            self._later.remove(later)
            later[1]()

    def _alone(self, served: Served) -> bool:
        """Whether no other request will come to exchange with."""
        others = (each for each in self._served if each is not served and _mistake(each) is Mistake.EXCHANGED)
        return all(each.over or each.decode_id is not None for each in others)

    def _ask_to_decode(self, served: Served, returned: Mapping[str, Any] | None) -> None:
        mistake = _mistake(served)
        if mistake is not None and self._decode.error is None:
            self.planted.add(served.request.id)
        if mistake is Mistake.ALTERED and returned is not None:
            returned = _altered(returned)
        super()._ask_to_decode(served, returned)
        if mistake is Mistake.TWICE:
            again, at = self._named(served), self._tick + self._rng.randrange(AGAIN_TICKS)
            params = json.loads(json.dumps(returned))
            asked = again, list(served.prompt), served.request.max_tokens, params
            self._later.append((at, lambda: self._decode.ask(*asked)))

    def _leaves(self, served: Served, point: Point) -> bool:
        if left := super()._leaves(served, point):
            self.left[served.request.id] = point
        return left

    def _decoded(self, outputs: Sequence[Any]) -> None:
        for served, output in self._ended(outputs, lambda each: each.decode_id):
            if output.finish_reason.name != "ERROR":
                self.answered.add(served.request.id)
        super()._decoded(outputs)


def _mistake(served: Served) -> Mistake | None:
    return getattr(served.request, "mistake", None)


def _altered(returned: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with another block in place of the last one."""
    *before, last = returned["remote_block_ids"][-1]
    groups = [*returned["remote_block_ids"][:-1], [*before, last - 1 if last > 1 else last + 1]]
    return {**returned, "remote_block_ids": groups}


@dataclass(frozen=True, kw_only=True)
class PlayedPair(Played):
    """The result of a scenario on two engines, with what really happened.

    Attributes:
        recorded: the events of each engine, in its recorder's order.
        wrong: by the client's id of a request, what it has read that was not its own, in a sentence.
        errors: what engines died of, and where, by their names.
        left: requests that had not ended or still held blocks in the end, by engine.
        remembered: ids of requests that have ended on both engines and that a connector still holds in the end, by place:
            engine, side and attribute.
        answered: the clients' ids of the requests that were decoded to their end.
        planted: those of the requests that met the router's mistake of theirs.
        disconnected: where clients disconnected, by their ids.
        names: the client's id of each request, by an engine's.
        network: what it did.
    """

    recorded: Mapping[str, Sequence[Event]]
    wrong: Mapping[str, str]
    errors: Mapping[str, str]
    left: Mapping[str, Sequence[str]]
    remembered: Mapping[str, Sequence[str]]
    answered: frozenset[str]
    planted: frozenset[str]
    disconnected: Mapping[str, Point]
    names: Mapping[str, str]
    network: Network

    def found(self, *rules: str) -> set[str]:
        """The clients' ids of the requests that these rules name, or that any does."""
        return {
            self.names.get(each.request or "", each.request or "")
            for each in self.findings
            if not rules or each.rule in rules
        }

    @property
    def given_back_early(self) -> set[str]:
        """The clients' ids of the requests with a reader that first reported after the blocks were given back,
        though their lease had not run out."""
        reported: set[tuple[str | None, str | None]] = set()
        sent: set[str | None] = set()
        expired: set[str | None] = set()
        early = set()
        for event in self.recorded[PREFILL]:
            if isinstance(event, Free):
                expired.add(event.request)
            elif isinstance(event, Sent):
                sent.add(event.request)
            elif isinstance(event, Read):
                if event.request in sent - expired and (event.request, event.peer) not in reported:
                    early.add(self.names[event.request or ""])
                reported.add((event.request, event.peer))
        return early


class FaultyRun(pairs.PairRun):
    """A run whose router makes mistakes, and whose engines are killed."""

    router_type = FaultyRouter

    def tick(self, tick: int) -> None:
        pair, (prefill, decode, *_) = self.pair, self.engines
        if isinstance(pair, FaultyPair):
            if tick == pair.prefill_dies_at:
                kill(prefill)
            elif tick == pair.decode_dies_at:
                kill(decode)
            elif _returns(pair, tick) and decode.error is None:
                self.engines.append(self.made(AGAIN, prefill.id if pair.prefill_returns is Return.SAME else None))
                cast(FaultyRouter, self.router).prefill_with(self.engines[-1])
        super().tick(tick)

    @property
    def last_tick(self) -> int:
        pair, network = self.pair, self.pair.network
        deaths = (pair.prefill_dies_at, pair.decode_dies_at) if isinstance(pair, FaultyPair) else ()
        late = RETURNS_TICKS + network.transfer_ticks + network.message_ticks + network.handshake_ticks
        return max([super().last_tick, *(each + late for each in deaths if each is not None)])

    def played(self) -> PlayedPair:
        plain, router = super().played(), cast(FaultyRouter, self.router)
        left = {engine.name: pairs.left_in(engine) for engine in self.engines}
        dead = next((engine for engine in self.engines if engine.error not in (None, KILLED)), None)
        same = {each.name: getattr(plain, each.name) for each in fields(plain)}
        same |= {"error": None if dead is None else dead.error, "traceback": "" if dead is None else dead.trace}
        killed = [name for engine in self.engines if engine.error == KILLED for name in pairs.left_in(engine)]
        same["unfinished"] = {name: where for name, where in plain.unfinished.items() if name not in killed}
        return PlayedPair(
            **same,
            recorded={engine.name: engine.exporter.events() for engine in self.engines},
            wrong=self.wrong(),
            errors={each.name: f"{each.error}\n{each.trace}" for each in self.engines if each.error is not None},
            left={name: ids for name, ids in left.items() if ids},
            remembered=self.remembered,
            answered=frozenset(router.answered),
            planted=frozenset(router.planted),
            disconnected=router.left,
            names=router.names,
            network=self.network,
        )


def play_pair(scenario: Scenario, connector: Mapping[str, Any]) -> PlayedPair:
    """Run a scenario on two engines, with what it plants, and judge what both record.

    Raises:
        ValueError, ImportError: vLLM refuses a setting or the connector.
    """
    return cast(PlayedPair, pairs.play_pair(scenario, connector, FaultyRun))


def kill(engine: Engine) -> None:
    """An engine is gone from one moment to the next: nobody answers for it, and nothing more is recorded."""
    in_memory.flush()
    engine.exporter.seal(later_s=0)
    engine.error = KILLED
    for connector in engine.worker.connectors:
        connector.shutdown()  # its memory is no more
    engine.stage.close()
    recorder.forget(engine.id)


def _returns(pair: FaultyPair, tick: int) -> bool:
    died = pair.prefill_dies_at
    return pair.prefill_returns is not None and died is not None and tick == died + RETURNS_TICKS


__all__ = [
    "DECODE", "KILLED", "PREFILL", "Mistake", "PlayedPair", "Request", "Return", "drawn", "paired", "play_pair", "with_pair",
]  # fmt: skip
