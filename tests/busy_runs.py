"""Correct connectors on vLLM's real scheduler, in engines that are merely busy, at the speed of real ones.

Few slots, bursts of requests that hit, deep queues, priorities, long outputs, scarce blocks, slow transfers. A step
takes from 5 ms to 2 s of recorded time, so a run lasts from a minute to hours. Nothing of it is a fault, whatever waits
for however long.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from recorded_runs import Run, play

from kvtrail.connector import registration
from kvtrail.connector.simulate.scenario import Abort, Arrival, CachesReset, Scenario, Workers
from kvtrail.tracer.events.cache_groups import FULL, MAMBA, SLIDING, CacheGroup
from kvtrail.tracer.events.semconv import Level

BLOCK = 32
CPU_BYTES = 50_000_000
PEER = "busy_connectors:SlowPeer"
CONNECTORS = (
    "OffloadingConnector",
    "busy_connectors:LaterOnce",
    PEER,
    "OffloadConnector",
    "SimpleCPUOffloadConnector",
    "MultiConnector",
)
OF_GROUPS = ("OffloadingConnector", "OffloadConnector", "SimpleCPUOffloadConnector")
"""Those that keep several KV cache groups: the OffloadingConnector of vLLM 0.32 not a window's, see docs/findings.md."""
SLOWEST_S = 100.0
"""How long a transfer takes at most: less than what rules call too long."""
PEERS_SLOWEST_S = 500.0
"""How long another engine takes at most: less than the connector waits for it."""


def burst(
    rng: random.Random, slots: int, requests: int, *, output: int, step_s: float, heads: int | None = None
) -> Scenario:
    """Requests with stored prompts come at once, and wait for slots. Their loads take none. They share `heads`
    prompts."""
    stored = [(f"head-{n}", BLOCK * rng.randrange(2, 9)) for n in range(heads or rng.choice([4, requests]))]
    first = tuple(Arrival(f"first-{n}", (head, ("tail", 9)), 2) for n, head in enumerate(stored))
    at_step = 200 + 4 * requests
    hits = tuple(
        Arrival(
            f"hit-{n}",
            (stored[n % len(stored)], (f"own-{n}", 40)),
            output,
            at_step=at_step,
            priority=rng.randrange(3),
        )
        for n in range(requests)
    )
    settings = {"max_num_seqs": slots, "scheduling_policy": rng.choice(["fcfs", "priority"])}
    return Scenario(
        arrivals=(*first, *hits),
        resets=(CachesReset(at_step - 1),),  # vLLM's own cache does not hold what the connector's store does
        num_blocks=requests * 24 + 64,
        settings=settings,
        workers=_workers(rng, step_s),
        seed=rng.randrange(10**6),
    )


def storm(rng: random.Random, slots: int, requests: int, *, output: int, step_s: float) -> Scenario:
    """Requests that share prefixes come at random, and clients leave, in an engine with few slots and scarce blocks."""
    heads = [(f"head-{n}", BLOCK * rng.randrange(2, 12)) for n in range(4)]
    pace = max(1, output // (2 * slots))
    arrivals = tuple(
        Arrival(
            f"storm-{n}",
            (rng.choice(heads), (f"own-{n}", rng.randrange(1, 200))),
            rng.randrange(1, 2 * output),
            at_step=rng.randrange(1 + requests * pace),
            priority=rng.randrange(3),
        )
        for n in range(requests)
    )
    gone = tuple(
        Abort(each.id, each.at_step + rng.randrange(200)) for each in rng.sample(arrivals, k=len(arrivals) // 8)
    )
    settings = {"max_num_seqs": slots, "scheduling_policy": rng.choice(["fcfs", "priority"])}
    return Scenario(
        arrivals=arrivals,
        aborts=gone,
        num_blocks=rng.choice([72, 120, 400]),
        settings=settings,
        workers=_workers(rng, step_s),
        seed=rng.randrange(10**6),
    )


WINDOW, STATE = CacheGroup(SLIDING, window=100), CacheGroup(MAMBA)
WITH_STATES = ((CacheGroup(FULL), STATE),)
HYBRIDS = (*WITH_STATES, (CacheGroup(FULL), WINDOW), (WINDOW, CacheGroup(FULL)), (CacheGroup(FULL), WINDOW, STATE))
Kind = Callable[..., Scenario]
KINDS: tuple[Kind, ...] = (burst, storm)


def busy(seed: int) -> Run:
    """A busy engine, by seed."""
    rng = random.Random(f"busy/{seed}")
    kind, connector = rng.choice(KINDS), rng.choice(CONNECTORS)
    step_s = rng.choice([0.005, 0.05, 0.25, 1.0])  # drawn from a half to twice of it
    slots = rng.choice([2, 4, 8])
    scenario = kind(rng, slots, rng.choice([24, 40, 64]), output=rng.choice([20, 60, 150]), step_s=step_s)
    if connector == PEER:
        slowest = min(400, int(rng.choice([10.0, 150.0, PEERS_SLOWEST_S]) / (2 * step_s)))
        scenario = replace(scenario, workers=replace(scenario.workers, latest_steps=slowest))
    return run(f"{kind.__name__}/{connector}/{seed}", connector, scenario, step_s, rng)


def hybrid(seed: int) -> Run:
    """The same of a hybrid model with groups that share the pool."""
    rng = random.Random(f"hybrid/{seed}")
    kind, connector = rng.choice(KINDS), rng.choice(OF_GROUPS)
    groups = rng.choice(WITH_STATES if connector == "OffloadingConnector" else HYBRIDS)
    step_s = rng.choice([0.005, 0.05, 0.25, 1.0])
    scenario = kind(rng, rng.choice([2, 4, 8]), rng.choice([24, 40]), output=rng.choice([20, 60]), step_s=step_s)
    scenario = replace(scenario, groups=groups, num_blocks=len(groups) * scenario.num_blocks)
    kinds = "+".join(group.kind for group in groups)
    return run(f"{kind.__name__}/{connector}/{kinds}/{seed}", connector, scenario, step_s, rng)


def run(name: str, connector: str, scenario: Scenario, step_s: float, rng: random.Random) -> Run:
    """Run a scenario with steps of this length."""
    if connector == "MultiConnector":
        children = [_configuration(each) for each in ("OffloadConnector", "OffloadingConnector")]
        configuration = registration.configuration(connector, {"connectors": children})
    else:
        configuration = _configuration(connector)
    return play(
        replace(scenario, most_steps=200_000),
        configuration,
        rng,
        name=name,
        levels=rng.choice([(Level.DETAILED,), (Level.DETAILED,), (Level.BASIC,)]),
        step_s=step_s,
        lives_on_s=60,
    )


def _configuration(name: str) -> dict[str, Any]:
    return registration.configuration(
        name, {} if name in ("OffloadConnector", PEER) else {"cpu_bytes_to_use": CPU_BYTES}
    )


def _workers(rng: random.Random, step_s: float) -> Workers:
    """Transfers that take up to `SLOWEST_S`, at the slowest pace of steps."""
    latest = min(400, int(rng.choice([0.1, 1.0, 10.0, SLOWEST_S]) / (2 * step_s)))
    return Workers(latest_steps=latest, seed=rng.randrange(10**6))
