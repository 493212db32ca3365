"""Plays a scenario on two bare engines in this process: one prefills, the other decodes, and a router stands between them.

Both run vLLM's scheduler and both sides of their connector, unmodified. The KV moves over an in-memory network, and the model
of the engine that decodes compares every block that it reads with what the other one has computed: both have one model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from kvtrail.connector import registration
from kvtrail.connector.known import by_class
from kvtrail.connector.known.nixl.stand_in import Clock, can_be_installed, installed
from kvtrail.connector.known.nixl.stand_in.network import Network
from kvtrail.connector.recording import recorder
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.in_memory import InMemoryExporter
from kvtrail.connector.simulate.judges import leftovers
from kvtrail.connector.simulate.judges.observer import BYTES, REST, Observation
from kvtrail.connector.simulate.pairs.router import Router
from kvtrail.connector.simulate.run import FLUSH_STEPS, MUCH_LATER_S, Played, judged_alone, of_its_own, where
from kvtrail.connector.simulate.scenario import Arrival, Pair, Point, Return, Scenario
from kvtrail.connector.simulate.stages import BareScheduler
from kvtrail.connector.simulate.workers.contents import Shared
from kvtrail.connector.simulate.workers.model import Model
from kvtrail.connector.simulate.workers.own_worker import OwnWorker
from kvtrail.tracer.events.events import Event, Free, Lookup, Read, Sent
from kvtrail.tracer.model.findings import by_weight

MOST_TICKS = 4000
RETURNS_TICKS = 5
"""How many ticks an engine that was killed is away."""
QUIET_TICKS = 30
"""Nothing happens for so long when all is done: the last messages have arrived."""
LEASES = 3
"""Who still waits when nothing has happened for so many leases waits forever."""
KILLED = "killed"
"""The error of an engine that died of nothing of its own."""
PREFILL, DECODE, AGAIN = "prefill", "decode", "prefill again"
PORTS = {PREFILL: "5600", DECODE: "5601", AGAIN: "5600"}
"""Nothing listens there; they tell the engines apart."""


class Engine:
    """One of the two engines, which may die without the other one.

    Attributes:
        id: what its connector calls it.
        stage: it, with the connector's own workers.
        error, trace: what it died of, and where; None and empty as long as it lives.
    """

    def __init__(
        self,
        name: str,
        id: str,
        stage: BareScheduler,
        exporter: InMemoryExporter,
        every: int,
        beside: Sequence[Arrival],
    ) -> None:
        """It makes a step in every `every` ticks, and is asked for some requests `beside` those of the router; `exporter` has
        what it records."""
        self.name, self.id, self.stage, self._exporter = name, id, stage, exporter
        self.error: str | None = None
        self.trace = ""
        self._every, self._beside = every, sorted(beside, key=lambda each: each.at_step)[::-1]

    def tick(self, tick: int) -> None:
        """Let one tick pass."""
        while self._beside and self._beside[-1].at_step <= tick:
            self._guarded(self.stage.arrive, self._beside.pop())
        if tick % self._every == 0:
            self._guarded(self.stage.step)

    def ask(self, request_id: str, prompt: list[int], max_tokens: int, transfer: Mapping[str, Any] | None) -> None:
        self._guarded(lambda: self.stage.add(request_id, prompt, max_tokens, transfer=transfer))

    def abort(self, request_id: str) -> None:
        self._guarded(self.stage.abort, request_id)

    def end_recording(self) -> None:
        """What it has recorded is all, and is judged as much later, or where it died."""
        if self.error != KILLED:
            self._exporter.seal(later_s=MUCH_LATER_S if self.error is None else 0)

    def kill(self) -> None:
        """It is gone from one moment to the next: nobody answers for it, and nothing more is recorded."""
        in_memory.flush()
        self._exporter.seal(later_s=0)
        self.error = KILLED
        for connector in self._worker.connectors:
            connector.shutdown()  # its memory is no more
        self.stage.close()
        recorder.forget(self.id)

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do and holds no blocks, or is dead."""
        return self.error is not None or not (self._beside or self.stage.scheduler.requests)

    @property
    def state(self) -> object:
        """Differs from before once a request has come, ended, begun to wait for something else, or has other tokens."""
        requests = self.stage.scheduler.requests.values()
        return self.error, [(each.request_id, each.status, each.num_computed_tokens) for each in requests]

    @property
    def model(self) -> Model:
        return self._worker.model

    def remembered(self, ended: Set[str]) -> dict[str, set[str]]:
        """Those of these ended requests, of either engine, that its connector's two sides still know."""
        if self.error is not None:
            return {}
        sides = {"scheduler": self.stage.connectors[0], "worker": self._worker.connectors[0]}
        return {
            f"{self.name} {side}: {place}": ids
            for side, connector in sides.items()
            for place, ids in leftovers.held(connector, ended, frozenset()).items()
        }

    @property
    def _worker(self) -> OwnWorker:
        assert isinstance(self.stage.worker, OwnWorker)
        return self.stage.worker

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> None:
        if self.error is not None:
            return
        try:
            call(*arguments)
        except Exception as died:  # an engine may die of anything
            self.error, self.trace = f"{type(died).__name__}: {died}", where(died)


@dataclass(frozen=True, kw_only=True)
class PlayedPair(Played):
    """The result of a scenario on two engines: what `Played` says is of both together, judged as one history.

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


def hands_over(name: str) -> bool:
    """Whether engines with the connector of this name can hand over to each other in one process."""
    try:
        cls = registration.resolve(registration.configuration(name, {})["kv_connector"])
    except Exception:  # of whatever its module raises when it is imported; who plays it says more
        return False
    known = by_class(cls)
    names = frozenset() if known is None else known.hands_over
    return any(base.__name__ in names for base in cls.__mro__) and can_be_installed()


def can_be_paired(connector: str, config: Mapping[str, Any] | None) -> bool:
    """Whether engines with this connector can hand over to each other, by itself or by one of its children; `config` is its
    `kv_connector_extra_config`."""
    children = (config or {}).get("connectors", ())
    return any(map(hands_over, (connector, *(child.get("kv_connector", "") for child in children))))


def play_pair(scenario: Scenario, connector: Mapping[str, Any]) -> PlayedPair:
    """Run a scenario on two engines with this `kv_transfer_config`, and judge what both record.

    Raises:
        ValueError, ImportError: vLLM refuses a setting or the connector.
    """
    pair = scenario.pair
    assert pair is not None
    network, clock, shared = Network(pair.network), Clock(), Shared()
    with tempfile.TemporaryDirectory() as folder, in_memory.exporters() as exporters, installed(network, clock):

        def made(name: str, engine_id: str | None = None) -> Engine:
            return _engine(name, Path(folder), scenario, connector, shared, exporters, engine_id)

        both = [made(PREFILL), made(DECODE)]
        (prefill, decode), router = both, Router(pair.requests, *both, seed=scenario.seed)
        quiet = still = 0
        state: object = None
        for tick in range(MOST_TICKS):
            clock.now_s += pair.tick_s
            network.tick()
            if tick == pair.prefill_dies_at:
                prefill.kill()
            elif tick == pair.decode_dies_at:
                decode.kill()
            elif _returns(pair, tick) and decode.error is None:
                both.append(made(AGAIN, prefill.id if pair.prefill_returns is Return.SAME else None))
                router.prefill_with(both[-1])
            router.tick(tick)
            for engine in both:
                engine.tick(tick)
            if tick % FLUSH_STEPS == 0:
                in_memory.flush()
            quiet = quiet + 1 if router.is_idle and all(engine.is_idle for engine in both) else 0
            before, state = state, [engine.state for engine in both]
            still = still + 1 if state == before else 0
            if quiet > QUIET_TICKS or still > _longest_ticks(scenario, pair) + LEASES * pair.lease_s / pair.tick_s:
                break
        in_memory.flush()
        for engine in both:
            engine.end_recording()
        left = {engine.name: sorted(engine.stage.scheduler.requests) for engine in both}
        # As long as a living engine has a request, the other one may know of it.
        unended = {router.names.get(each) for engine in both if engine.error is None for each in left[engine.name]}
        ended = {each for each, client in router.names.items() if client not in unended}
        remembered = {place: sorted(ids) for engine in both for place, ids in engine.remembered(ended).items()}
        for engine in both:
            with suppress(Exception):  # a dead engine may not end well either
                engine.stage.close()
        recorded = {engine.name: list(exporter.events()) for engine, exporter in zip(both, exporters, strict=True)}
    # Both have one clock here, so that a sidecar would have heard them in this order.
    events = sorted((event for each in recorded.values() for event in each), key=lambda event: event.end_ns)
    detector, checks = judged_alone(events, None)
    wrong = _wrong(both, router.names | {each.id: each.id for each in (*scenario.arrivals, *pair.decodes)})
    dead = next((engine for engine in both if engine.error not in (None, KILLED)), None)
    return PlayedPair(
        exporters=exporters,
        events=events,
        findings=by_weight([finding for held in detector.findings.values() for finding in held.values()]),
        checks=checks,
        observations=_observations(wrong, remembered),
        error=None if dead is None else dead.error,
        traceback="" if dead is None else dead.trace,
        steps=sum(engine.stage.steps for engine in both),
        unfinished={
            name: f"in the engine that is to {engine.name}"
            for engine in both
            for name in left[engine.name]
            if engine.error != KILLED
        },
        lookups=[event for event in events if isinstance(event, Lookup)],
        loads_read=decode.model.loaded,
        loads_copied=True,  # by the network, at any time
        blocks_compared=sum(engine.model.compared for engine in both),
        unprobed=next((each._kvtrail.unprobed for each in decode.stage.connectors if hasattr(each, "_kvtrail")), None),
        ranks=max(pair.prefill_ranks, pair.decode_ranks),
        recorded=recorded,
        wrong=wrong,
        errors={engine.name: f"{engine.error}\n{engine.trace}" for engine in both if engine.error is not None},
        left={name: ids for name, ids in left.items() if ids},
        remembered=remembered,
        answered=frozenset(router.answered),
        planted=frozenset(router.planted),
        disconnected=router.left,
        names=router.names,
        network=network,
    )


def _observations(wrong: Mapping[str, str], remembered: Mapping[str, Sequence[str]]) -> list[Observation]:
    """What was wrong that no event shows."""
    bytes_ = [Observation(BYTES, "a request has read KV that is not its own", text) for text in wrong.values()]
    rest = [
        Observation(
            REST,
            f"{place} remembers ended requests",
            f"`{place}` still holds requests that have ended on both engines: {', '.join(ids)}.",
        )
        for place, ids in remembered.items()
    ]
    return [*bytes_, *rest]


def _engine(
    name: str,
    folder: Path,
    scenario: Scenario,
    connector: Mapping[str, Any],
    shared: Shared,
    exporters: Sequence[InMemoryExporter],
    engine_id: str | None,
) -> Engine:
    """An engine; without an `engine_id` it has one that no other has."""
    pair = scenario.pair
    assert pair is not None
    prefills = name != DECODE
    own = of_its_own(connector)
    own["engine_id"] = engine_id or f"{name.partition(' ')[0]}-{own['engine_id']}"
    own["kv_role"] = "kv_producer" if prefills else "kv_consumer"
    own["kv_load_failure_policy"] = "recompute" if scenario.recompute else "fail"
    for each in (own, *own["kv_connector_extra_config"].get("connectors", ())):
        if hands_over(each["kv_connector"]):
            each["kv_buffer_device"] = "cpu"
            each["kv_connector_extra_config"]["kv_lease_duration"] = pair.lease_s
    with mock.patch.dict(os.environ, VLLM_NIXL_SIDE_CHANNEL_PORT=PORTS[name]):
        stage = BareScheduler(
            folder,
            own,
            own_workers=True,
            num_blocks=scenario.num_blocks if prefills else pair.decode_blocks,
            seed=scenario.seed,
            groups=scenario.groups,
            workers=scenario.workers,
            shared=shared,
            tensor_parallel_size=pair.prefill_ranks if prefills else pair.decode_ranks,
        )
    every = pair.prefill_every if prefills else pair.decode_every
    beside = {PREFILL: scenario.arrivals, DECODE: pair.decodes}.get(name, ())
    return Engine(name, own["engine_id"], stage, exporters[-1], every, beside)


def _returns(pair: Pair, tick: int) -> bool:
    died = pair.prefill_dies_at
    return pair.prefill_returns is not None and died is not None and tick == died + RETURNS_TICKS


def _longest_ticks(scenario: Scenario, pair: Pair) -> int:
    """If nothing happens for so long, what the scenario itself still has to do or to wait for is over."""
    begin = [each.at_tick for each in pair.requests] + [each.at_step for each in (*scenario.arrivals, *pair.decodes)]
    died = [each + RETURNS_TICKS for each in (pair.prefill_dies_at, pair.decode_dies_at) if each is not None]
    kept = [each.kept_ticks for each in pair.requests]
    network = pair.network.transfer_ticks + pair.network.message_ticks + pair.network.handshake_ticks
    return max([*begin, *died, *kept], default=0) + network


def _wrong(both: Sequence[Engine], names: Mapping[str, str]) -> dict[str, str]:
    """What was wrong, by the first request that each sentence names."""
    wrong: dict[str, str] = {}
    for engine in both:
        for text in engine.model.wrong:
            request_id = next(word for word in text.split() if word in names)
            wrong.setdefault(names[request_id], f"{engine.name}: {text}")
    return wrong
