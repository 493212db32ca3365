"""Runs a scenario on two bare engines in this process: one prefills, the other decodes, with a router between them.

Both run vLLM's scheduler and both sides of their connector, unmodified. The KV moves over an in-memory network, and the model
of the decoding engine compares every block that it reads with the KV that the prefill engine computed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvtrail.connector.known.nixl.stand_in import Clock, installed
from kvtrail.connector.known.nixl.stand_in.network import Network
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.in_memory import InMemoryExporter
from kvtrail.connector.simulate.judges.failure import BYTES, REST_MEMORY, Failure
from kvtrail.connector.simulate.pairs.engine import DECODE, PREFILL, Engine
from kvtrail.connector.simulate.pairs.router import Router
from kvtrail.connector.simulate.run import FLUSH_STEPS, MUCH_LATER_S, Played, judged_alone
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.connector.simulate.workers.contents import Shared
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.model.findings import by_weight

MOST_TICKS = 4000
QUIET_TICKS = 30
"""Number of idle ticks after which the last messages have arrived."""
LEASES = 3
"""Number of leases without progress after which requests count as waiting forever."""


class PairRun:
    """A run of a scenario on two engines.

    Attributes:
        engines: the prefill engine and the decoding engine.
        network: the network between them.
        remembered: ids of requests that have ended on both engines and that a connector still holds at the end, by place:
            engine, side and attribute.
    """

    router_type: type[Router] = Router

    def __init__(
        self,
        scenario: Scenario,
        connector: Mapping[str, Any],
        folder: Path,
        exporters: Sequence[InMemoryExporter],
        network: Network,
    ) -> None:
        assert scenario.pair is not None
        self.scenario, self.pair, self.exporters, self.network = scenario, scenario.pair, exporters, network
        self._made_of = folder, scenario, connector, Shared(), exporters
        self.engines = [self.made(PREFILL), self.made(DECODE)]
        self.router = self.router_type(self.pair.requests, *self.engines, seed=scenario.seed)
        self.remembered: Mapping[str, Sequence[str]] = {}
        self._quiet = self._still = 0
        self._state: object = None

    def made(self, name: str, engine_id: str | None = None) -> Engine:
        return Engine(name, *self._made_of, engine_id)

    def tick(self, tick: int) -> None:
        """Advance by one tick."""
        self.router.tick(tick)
        for engine in self.engines:
            engine.tick(tick)
        if tick % FLUSH_STEPS == 0:
            in_memory.flush()

    @property
    def last_tick(self) -> int:
        """The tick by which all events of the scenario have begun."""
        pair, network = self.pair, self.pair.network
        begin = [max(each.at_tick, each.kept_ticks) for each in pair.requests]
        begin += [each.at_step for each in (*self.scenario.arrivals, *pair.decodes)]
        return max(begin, default=0) + network.transfer_ticks + network.message_ticks + network.handshake_ticks

    def is_over(self) -> bool:
        """Whether all requests have ended or wait forever; called after each tick."""
        idle = self.router.is_idle and all(engine.is_idle for engine in self.engines)
        self._quiet = self._quiet + 1 if idle else 0
        before, self._state = self._state, [engine.state for engine in self.engines]
        self._still = self._still + 1 if self._state == before else 0
        patience = self.last_tick + LEASES * self.pair.lease_s / self.pair.tick_s
        return self._quiet > QUIET_TICKS or self._still > patience

    def end(self) -> None:
        """Check what is left, and shut the engines down."""
        in_memory.flush()
        for engine in self.engines:
            engine.exporter.seal(later_s=MUCH_LATER_S if engine.error is None else 0)
        # While a living engine has a request, the other one may remember it.
        names = self.router.names
        unended = {names.get(each) for engine in self.engines if engine.error is None for each in left_in(engine)}
        ended = {each for each, client in names.items() if client not in unended}
        self.remembered = {
            place: sorted(ids) for engine in self.engines for place, ids in engine.remembered(ended).items()
        }
        for engine in self.engines:
            with suppress(Exception):  # a dead engine may not end well either
                engine.stage.close()

    def played(self) -> Played:
        """The result of both engines, judged as one history."""
        # Both engines share one clock here, so a sidecar would have received the events in this order.
        events = sorted((event for each in self.exporters for event in each.events()), key=lambda event: event.end_ns)
        detector, checks = judged_alone(events)
        decode, dead = self.engines[1], next((engine for engine in self.engines if engine.error is not None), None)
        return Played(
            exporters=self.exporters,
            events=events,
            findings=by_weight([finding for held in detector.findings.values() for finding in held.values()]),
            checks=checks,
            observations=self._observations(),
            error=None if dead is None else dead.error,
            traceback="" if dead is None else dead.trace,
            steps=sum(engine.stage.steps for engine in self.engines),
            unfinished={
                name: f"in the engine that is to {engine.name}" for engine in self.engines for name in left_in(engine)
            },
            lookups=[event for event in events if isinstance(event, Lookup)],
            loads_read=decode.worker.model.loaded,
            loads_copied=True,  # by the network, at any time
            blocks_compared=sum(engine.worker.model.compared for engine in self.engines),
            unprobed=next(
                (each._kvtrail.unprobed for each in decode.stage.connectors if hasattr(each, "_kvtrail")), None
            ),
            ranks=max(self.pair.prefill_ranks, self.pair.decode_ranks),
        )

    def wrong(self) -> dict[str, str]:
        """A sentence about the wrong KV that a request has read, by the first client's id that it names."""
        names = self.router.names | {each.id: each.id for each in (*self.scenario.arrivals, *self.pair.decodes)}
        wrong: dict[str, str] = {}
        for engine in self.engines:
            for text in engine.worker.model.wrong:
                request_id = next(word for word in text.split() if word in names)
                wrong.setdefault(names[request_id], f"{engine.name}: {text}")
        return wrong

    def _observations(self) -> list[Failure]:
        """The failures that no event shows."""
        observations = [
            Failure(BYTES, "a request has read KV that is not its own", text) for text in self.wrong().values()
        ]
        for place, ids in self.remembered.items():
            text = f"`{place}` still holds requests that have ended on both engines: {', '.join(ids)}."
            observations.append(Failure(REST_MEMORY, f"{place} remembers ended requests", text))
        return observations


def play_pair(scenario: Scenario, connector: Mapping[str, Any], run: type[PairRun] = PairRun) -> Played:
    """Run a scenario on two engines with this `kv_transfer_config`, and judge what both record.

    Raises:
        ValueError, ImportError: vLLM refuses a setting or the connector.
    """
    assert scenario.pair is not None
    network, clock = Network(scenario.pair.network), Clock()
    with tempfile.TemporaryDirectory() as folder, in_memory.exporters() as exporters, installed(network, clock):
        both = run(scenario, connector, Path(folder), exporters, network)
        for tick in range(MOST_TICKS):
            clock.now_s += scenario.pair.tick_s
            network.tick()
            both.tick(tick)
            if both.is_over():
                break
        both.end()
    return both.played()


def left_in(engine: Engine) -> list[str]:
    """Requests that have not ended in an engine or still hold blocks of it."""
    return sorted(engine.stage.scheduler.requests)
