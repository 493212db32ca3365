"""Runs of vLLM's real scheduler, as lists of the events that the recorders of its processes would have sent.

The scheduler, its KV cache manager and the connector are real, and so are the workers of the OffloadConnector, which have
recorders of their own, as in processes of their own. The steps' time is made up: a run takes milliseconds here and minutes
there, so each moment of it is moved into recorded time, and each recorder sends the heartbeats that it would have sent
in that time, every five seconds, with their numbers. Nothing else is changed: no event is added, left out or numbered to
suit a rule.
"""

from __future__ import annotations

import copy
import hashlib
import random
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import faults  # noqa: F401 - makes them known
from faulty_pairs import PlayedPair, play_pair
from msgspec import structs
from once_a_session import once_a_session

from kvtrail.connector.known.nixl.stand_in.network import Network
from kvtrail.connector.recording import recorder
from kvtrail.connector.recording.idle_requests import IdleRequests
from kvtrail.connector.recording.recorder import HEARTBEAT_S, Recorder
from kvtrail.connector.simulate import in_memory, run
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest, varied
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.scenario import Abort, Arrival, Scenario, When
from kvtrail.tracer.events.events import Event, Heartbeat, RequestEnd, RequestStart
from kvtrail.tracer.events.semconv import Kind, Level

START_NS = 1_764_720_000_000_000_000
S = 10**9
FLUSH_STEPS = 200
RESTS_STEPS = 60
"""An id rests so long before it is used again: vLLM's OffloadingConnector remembers one until its stores have ended."""
CONNECTORS = (
    "OffloadConnector",
    "OffloadingConnector",
    "SimpleCPUOffloadConnector",
    "ExampleConnector",
    "MultiConnector",
)
"""Those that can be run on the bare scheduler with nothing but vLLM."""
SLOW_STEPS_S = {"stalled-transfers": 10.0, "callers-gave-up": 4.0}
"""How long a step takes, by fault: where what is wrong goes on for minutes."""
GIVES_UP_STEPS = 10
"""After this number of steps, 40 seconds, callers that wait for a load give up, where that is part of the fault."""


play_once = once_a_session(run.play)
"""The simulator's `play`, once a session for each scenario, connector and options."""
DIES_OF_RESETS = {"OffloadingConnector", "MultiConnector"}
"""With vLLM 0.32 the OffloadingConnector, also as a child, dies of a reset of running requests (`test_faults_of_vllm`)."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the recorders of one life of an engine have recorded.

    Attributes:
        name: what it was: connector, profile, seed.
        events: of all recorders, by time.
        scheduler: the recorder of the scheduler's process.
        error: what the engine died of; None if it lived.
    """

    name: str
    events: tuple[Event, ...]
    scheduler: str
    error: str | None = None

    @property
    def last_ns(self) -> int:
        """The time of the last event."""
        return max(event.end_ns for event in self.events)


def survivable(scenario: Scenario, connector: str) -> Scenario:
    """The scenario, but for what its engine would die of with this connector."""
    return sparing_running(scenario) if connector in DIES_OF_RESETS else scenario


def sparing_running(scenario: Scenario) -> Scenario:
    """The scenario, with resets that preempt nobody."""
    return replace(scenario, resets=tuple(replace(each, running=False) for each in scenario.resets))


@once_a_session
def healthy(connector: str, profile: str, seed: int, *, workers: int = 1, engine: str = "engine") -> Run:
    """A run of a correct connector. The seed draws its settings, its level (which may change in the middle), how long steps
    take, and whether request ids are used again after their end."""
    rng = random.Random(f"{connector}/{profile}/{seed}")
    subject = ConnectorUnderTest(
        connector,
        varied(connector, rng.choice),
        beside=profile == "multi" and connector != "MultiConnector",
    )
    return play(
        survivable(scenario_of(profile, seed), connector),
        subject.configuration(),
        rng,
        name=f"{connector}/{profile}/{seed}",
        workers=workers,
        engine=engine,
        levels=rng.choice([(Level.DETAILED,), (Level.DETAILED,), (Level.BASIC,), (Level.BASIC, Level.DETAILED) * 2]),
        uses_ids_again=rng.random() < 0.3,
    )


@once_a_session
def faulty(
    fault: str,
    connector: str,
    profile: str,
    seed: int,
    *,
    settings: Mapping[str, Any] | None = None,
    level: Level = Level.DETAILED,
) -> Run:
    """A run with a known bug. Its engine lives on for ten minutes of recorded time, unless it dies."""
    rng = random.Random(f"{fault}/{connector}/{profile}/{seed}")
    extra = varied(connector, rng.choice) if settings is None else settings
    subject = ConnectorUnderTest(f"Faulty:{fault}:{connector}", extra, beside=fault == "unselected-load")
    scenario = sparing_running(scenario_of(profile, seed))
    if fault == "callers-gave-up":
        gone = tuple(Abort(each.id, each.at_step + GIVES_UP_STEPS, When.LOADING) for each in scenario.arrivals)
        scenario = replace(scenario, aborts=gone)
    return play(
        scenario,
        subject.configuration(),
        rng,
        name=f"{fault}/{profile}/{seed}",
        levels=(level,),
        lives_on_s=900,
        step_s=SLOW_STEPS_S.get(fault),
        salts=fault == "key-collision",
        hands_on=fault == "refused-handoff",
    )


def play(
    scenario: Scenario,
    configuration: dict[str, Any],
    rng: random.Random,
    *,
    name: str = "",
    workers: int = 1,
    engine: str = "engine",
    levels: Sequence[Level] = (Level.DETAILED,),
    uses_ids_again: bool = False,
    lives_on_s: int = 12,
    step_s: float | None = None,
    idle_s: float | None = None,
    salts: bool = False,
    hands_on: bool = False,
) -> Run:
    """Play a scenario on vLLM's scheduler.

    Args:
        workers: their number, where the connector's workers can run here.
        levels: taken one after the other.
        uses_ids_again: some requests get the id of one that has ended.
        lives_on_s: how long the engine sends heartbeats afterwards.
        step_s, idle_s: how long a step takes, and an idle one at most; drawn where they are not given.
        salts: each second request has another cache salt.
        hands_on: requests are to be handed on to another engine.
    """
    error = None
    configuration = copy.deepcopy(configuration) | {"engine_id": engine}
    with tempfile.TemporaryDirectory() as folder, in_memory.exporters() as exporters:
        stage = BareScheduler(
            Path(folder),
            configuration,
            num_blocks=scenario.num_blocks,
            block_size=scenario.block_size,
            seed=scenario.seed,
            drafts=scenario.drafts,
            workers=scenario.workers,
            groups=scenario.groups,
            **scenario.settings,
        )
        (mine,) = recorder.recorders()
        timed = _Timed(stage, rng, step_s=step_s, idle_s=idle_s, uses_ids_again=uses_ids_again)
        timed.salts, timed.hands_on, timed.spare = salts, hands_on, mine.spare
        timed.workers = [_Worker(stage, rank) for rank in range(workers)]
        recorders = [mine, *(each for worker in timed.workers for each in worker.recorders)]
        changes = {n * 60: level for n, level in enumerate(levels)}

        def on_step(steps: int) -> None:
            if (level := changes.get(steps)) is not None:
                mine.level.set(level, None)
            if steps % FLUSH_STEPS == 0:
                _flush(recorders)

        on_step(0)
        try:
            run.drive(scenario, cast(BareScheduler, timed), on_step)
        except Exception as died:  # a faulty connector may kill the engine in any way
            error = f"{type(died).__name__}: {died}"
        _flush(recorders)
        for each in recorders[1:]:
            each.close()
    is_old = rng.random() < 0.2  # a recorder that does not name the launch of its engine
    events: list[Event] = []
    end_ns = timed.end_ns + (0 if error else lives_on_s * S)
    for exporter in exporters:
        recorded = [structs.replace(e, launch=None) if is_old else e for e in exporter.events()]
        events += _as_recorded(recorded, timed, end_ns, counts_steps=recorded[0].recorder == mine.id)
    events.sort(key=lambda event: event.end_ns)
    return Run(name=name, events=tuple(events), scheduler=mine.id, error=error)


@once_a_session
def play_pair_once(scenario: Scenario, connector: Mapping[str, Any]) -> PlayedPair:
    """The simulator's `play_pair`, once a session for each scenario and connector: without the network's agents, which hold
    the engines' memory."""
    pair = play_pair(scenario, connector)
    network = Network(pair.network.schedule)
    network.lost, network.repeated, network.failed = pair.network.lost, pair.network.repeated, pair.network.failed
    return replace(pair, network=network)


class _Timed:
    """A stage with steps that take made-up time, with the workers that run in them."""

    def __init__(
        self,
        stage: BareScheduler,
        rng: random.Random,
        *,
        step_s: float | None,
        idle_s: float | None,
        uses_ids_again: bool,
    ) -> None:
        self.scheduler = stage.scheduler
        self.salts = self.hands_on = False
        self.workers: list[_Worker] = []
        self._added = 0
        self._stage = stage
        self._rng = rng
        self._step_s = rng.choice([0.005, 0.02, 0.08]) if step_s is None else step_s
        self._idle_s = rng.choice([0.0, 0.0, 10.0, 120.0]) if idle_s is None else idle_s
        self._real = [time.time_ns()]
        self._made_up = [START_NS]
        self._names: dict[str, str] | None = {} if uses_ids_again else None
        self.spare: Any = None
        self._spare_ns = [0]
        """How long the scheduler has had spare capacity by the end of each step, in recorded time."""
        self._seen: dict[str, int] = {}
        """The last step in which the engine knew an id."""

    def others_share_failed(self, request_id: str) -> bool:
        return self._stage.others_share_failed(request_id)

    @property
    def steps(self) -> int:
        return self._stage.steps

    @property
    def end_ns(self) -> int:
        """The end of the last step, in recorded time."""
        return self._made_up[-1]

    def arrive(self, arrival: Arrival) -> None:
        if self._names is not None:
            free = [name for name, step in self._seen.items() if step < self.steps - RESTS_STEPS]
            name = self._rng.choice(free) if free and self._rng.random() < 0.5 else arrival.id
            if name in self.scheduler.requests:  # an earlier one has taken it
                name = f"{arrival.id}-again"
            self._names[arrival.id] = name
            self._seen[name] = self.steps
            arrival = replace(arrival, id=name)
        if self.salts:
            self._added += 1
            arrival = replace(arrival, salt=f"caller-{self._added % 2}")
        self._stage.arrive(arrival)
        if self.hands_on:
            self.scheduler.requests[arrival.id].kv_transfer_params = {"do_remote_decode": True}

    def abort(self, request_id: str) -> None:
        self._stage.abort(self._named(request_id))

    def is_in(self, request_id: str, when: When) -> bool:
        return self._stage.is_in(self._named(request_id), when)

    def _named(self, request_id: str) -> str:
        return request_id if self._names is None else self._names.get(request_id, request_id)

    def step(self) -> int:
        idle = not self.scheduler.requests
        took_s = self._step_s * self._rng.uniform(0.5, 2)
        if idle and self._rng.random() < 0.2:
            took_s += self._rng.random() * self._idle_s
        try:
            return self._stage.step(self._run_workers)
        finally:
            self._seen.update(dict.fromkeys(self.scheduler.requests, self.steps))
            self._real.append(time.time_ns())
            self._made_up.append(self._made_up[-1] + int(took_s * S))
            has_spare = self.spare is not None and self.spare.has_spare
            self._spare_ns.append(self._spare_ns[-1] + int(took_s * S) * has_spare)

    def moved(self, at_ns: int) -> int:
        """A moment of the run in recorded time."""
        step = max(1, min(bisect_right(self._real, at_ns), len(self._real) - 1))
        begun, ended = self._real[step - 1], self._real[step]
        share = min(1.0, max(0.0, (at_ns - begun) / max(1, ended - begun)))
        return self._made_up[step - 1] + int(share * (self._made_up[step] - self._made_up[step - 1]))

    def steps_until(self, at_ns: int) -> int:
        """How many steps had begun by a moment of recorded time."""
        return min(bisect_right(self._made_up, at_ns), len(self._made_up) - 1)

    def spare_until(self, at_ns: int) -> int:
        """How long the scheduler had had spare capacity by a moment of recorded time. After the last step it goes on as it
        was."""
        step = bisect_right(self._made_up, at_ns) - 1
        after_ns = at_ns - self._made_up[step]
        return self._spare_ns[step] + after_ns * (self.spare is not None and self.has_spare_in(step))

    def has_spare_in(self, step: int) -> bool:
        """Whether the scheduler had spare capacity in a step, by its number from 0, or after the last one."""
        if step + 1 < len(self._spare_ns):
            return self._spare_ns[step + 1] > self._spare_ns[step]
        return self.spare is not None and self.spare.has_spare

    def _run_workers(self, output: Any) -> None:
        for worker in self.workers:
            worker.run(output.kv_connector_metadata)


class _NoTransfers:
    """In place of the OffloadConnector's: nothing is copied."""

    def load(self, copies: Any) -> None: ...

    def store(self, copies: Any) -> None: ...

    def wait_for_blocks(self, blocks: Any) -> None: ...

    def take_loaded(self) -> set[str]:
        return set()

    def take_failed(self) -> set[int]:
        return set()

    def close(self) -> None: ...


class _Worker:
    """A worker's process: the worker's side of each OffloadConnector of the engine, and a recorder of its own. What it copies
    is nothing, since there is no KV. Workers of other connectors record nothing, or refuse to run on a CPU."""

    def __init__(self, stage: BareScheduler, rank: int) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        self.recorders: list[Recorder] = []
        self._sides: list[tuple[int | None, Any]] = []
        connector: Any = stage.scheduler.connector
        children = enumerate(connector._connectors) if hasattr(connector, "_connectors") else [(None, connector)]
        with _another_process():
            for place, child in children:
                if not hasattr(child, "load_chunks"):
                    continue
                config = copy.copy(child._vllm_config)
                config.parallel_config = copy.copy(config.parallel_config)
                config.parallel_config.rank = rank
                cls: Any = type(child)
                side = cls(config, KVConnectorRole.WORKER, child._kv_cache_config)
                side._transfers = _NoTransfers()
                self._sides.append((place, side))
            self.recorders = recorder.recorders()

    def run(self, plan: Any) -> None:
        for place, side in self._sides:
            side.bind_connector_metadata(plan if place is None else plan.metadata[place])
            side.start_load_kv(None)
            side.wait_for_save()
            side.clear_connector_metadata()


@contextmanager
def _another_process() -> Iterator[None]:
    """Connectors that are made inside get a recorder of their own."""
    with patch.dict(recorder._recorders, clear=True):
        yield


def _flush(recorders: Sequence[Recorder]) -> None:
    for each in recorders:
        if not each.flush(60.0) or each.dropped:
            raise RuntimeError(f"{each.dropped} events were dropped")


def _as_recorded(events: Sequence[Event], timed: _Timed, end_ns: int, *, counts_steps: bool) -> list[Event]:
    """One recorder's events in recorded time, with the heartbeats that it would have sent then: the first at once, then
    one every five seconds, and a goodbye. The scheduler's says how many steps there were."""
    events = sorted(events, key=lambda event: event.sequence)  # two threads record: a heartbeat may be numbered first
    assert [event.sequence for event in events] == list(range(len(events))), "the run itself has gaps"
    alive = next(event for event in events if isinstance(event, Heartbeat))
    beat_ns, recorded = START_NS, list[Event]()
    idle, there, ended = IdleRequests(), dict[str, int](), set[str]()

    def beat(at_ns: int, *, closed: bool = False) -> None:
        number = len(recorded)
        named = idle.select(dict(there)) if counts_steps else None
        span_id = hashlib.blake2b(f"{alive.recorder}/{number}".encode(), digest_size=8).hexdigest()
        recorded.append(
            structs.replace(
                alive,
                sequence=number,
                start_ns=at_ns,
                end_ns=at_ns,
                span_id=span_id,
                recorder_recorded=number,
                recorder_dropped=0,
                recorder_closed=closed,
                scheduler_step=timed.steps_until(at_ns) if counts_steps else None,
                scheduler_spare_ns=timed.spare_until(at_ns) if counts_steps else None,
                idle_requests=named and named[0],
                idle_events=named and named[1],
            )
        )

    for event in events:
        if event.kind is Kind.HEARTBEAT:
            continue
        start_ns, at_ns = timed.moved(event.start_ns), timed.moved(event.end_ns)
        while beat_ns <= at_ns:
            beat(beat_ns)
            beat_ns += int(HEARTBEAT_S * S)
        recorded.append(structs.replace(event, sequence=len(recorded), start_ns=start_ns, end_ns=at_ns))
        if event.request is not None:
            there[event.request] = event.request_sequence + 1
            if isinstance(event, RequestStart):
                ended.discard(event.request)
            if isinstance(event, RequestEnd):
                ended.add(event.request)
            if event.request in ended and not getattr(event, "free_delayed", False):  # its blocks are free
                del there[event.request]
    while beat_ns <= end_ns:
        beat(beat_ns)
        beat_ns += int(HEARTBEAT_S * S)
    beat(end_ns, closed=True)
    return recorded
