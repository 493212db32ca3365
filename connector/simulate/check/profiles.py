"""Profiles: kinds of workloads, each for certain corner cases. A profile draws a scenario from a random generator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from kvtrail.connector.simulate.pairs.pair_scenario import drawn
from kvtrail.connector.simulate.scenario import (
    KV_EVENTS,
    Abort,
    Arrival,
    CachesReset,
    Scenario,
    Segment,
    When,
    Workers,
    wait,
)
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE
from kvtrail.tracer.events.cache_groups import ALL, CHUNKED, FULL, MAMBA, SLIDING, CacheGroup

MAX_LENGTH = 1024
"""Maximum number of tokens of a request, in the tiny model."""
LONGEST = 1000
"""Maximum number of tokens of a request in a conversation."""


def chunked_prefill(rng: random.Random) -> Scenario:
    """Long prompts with shared prefixes, computed in small chunks; some prompts arrive again."""
    scenario = _crowd(rng, requests=24, prompts=(100, 800), outputs=(1, 20), pool=(70, 120), pace=6)
    return _with(scenario, max_num_batched_tokens=rng.choice([48, 64, 96]))


def preemption_storm(rng: random.Random) -> Scenario:
    """More requests than the pool holds, so that many are preempted during their prefill, and again later."""
    if rng.random() < 0.3:
        return _growing(rng)
    scenario = _crowd(rng, requests=16, prompts=(300, 800), outputs=(20, 80), pool=(48, 64), pace=1)
    return _with(scenario, max_num_batched_tokens=rng.choice([48, 96, 200]))


def retry(rng: random.Random) -> Scenario:
    """Requests with a stored prefix that wait for blocks until two others end, and are looked up repeatedly."""
    head = _segment(rng, "head", 64 * rng.randrange(1, 5))
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    for number in range(6):
        at_step = number * 80
        for which, length, output in (("first", 990, 24 + number), ("second", 990, 30)):
            arrivals.append(Arrival(f"{which}-{number}", (_fresh(rng, length),), output, at_step))
        later = rng.randrange(20, 44)
        arrivals.append(Arrival(f"waits-{number}", (head, _fresh(rng, 600)), 3, at_step + later))
        resets.append(CachesReset(at_step + 79))
    return Scenario(arrivals=tuple(arrivals), resets=tuple(resets), num_blocks=64, seed=rng.randrange(10**6))


def abort(rng: random.Random) -> Scenario:
    """Clients that disconnect: while queued with a hit, during a prefill or a load, while preempted, or at any time."""
    if rng.random() < 0.5:
        scenario = retry(rng)
        gone = tuple(Abort(each.id, each.at_step, When.MATCHED) for each in scenario.arrivals if rng.random() < 0.3)
        return _aborted_while_deferred(replace(scenario, aborts=gone))
    scenario = _crowd(rng, requests=30, prompts=(100, 700), outputs=(10, 60), pool=(48, 80), pace=3)
    aborts = tuple(
        Abort(each.id, each.at_step + (0 if when else rng.randrange(40)), when)
        for each in rng.sample(scenario.arrivals, k=15)
        for when in [rng.choice([None, None, When.MATCHED, When.LOADING, When.PREEMPTED])]
    )
    scenario = replace(scenario, aborts=aborts, workers=replace(scenario.workers, latest_steps=8))
    return _aborted_while_deferred(scenario)


def asynchronous(rng: random.Random) -> Scenario:
    """Transfers that end late and out of order while blocks are scarce; for connectors that load between steps."""
    scenario = _crowd(rng, requests=24, prompts=(100, 700), outputs=(5, 60), pool=(48, 64), pace=3)
    resets = tuple(CachesReset(step) for step in range(40, 400, 40))
    return replace(scenario, resets=resets, workers=replace(scenario.workers, latest_steps=rng.choice([0, 8, 25])))


def load_failure(rng: random.Random) -> Scenario:
    """Loads that fail and are reported, so that vLLM computes the tokens itself. Before each wave, a request computes a part
    of the shared prefix, so that some loads begin, and fail, after tokens that vLLM has. Some requests are aborted after
    their load has failed, and their prompts arrive again. At the end, a prefix is stored and then loaded, by one request that
    is aborted after its load has failed, or by two requests in one step; and their prompts arrive again."""
    scenario = _waves(rng)
    heads = dict.fromkeys(arrival.prompt[0] for arrival in scenario.arrivals)
    parts = [
        Arrival(
            f"part-{wave}-{number}", ((name, BLOCK_SIZE * rng.randrange(1, count // BLOCK_SIZE) + 1),), 1, wave * 40
        )
        for wave in range(1, 8)
        for number, (name, count) in enumerate(heads)
    ]
    later = [replace(arrival, at_step=arrival.at_step + 14) for arrival in scenario.arrivals]
    longer = [replace(each, prompt=(*each.prompt, _fresh(rng, 300))) if rng.random() < 0.7 else each for each in later]
    again = [replace(each, id=f"{each.id}-again", at_step=each.at_step + 40) for each in longer if rng.random() < 0.8]
    gone = tuple(Abort(each.id, each.at_step, When.FAILED) for each in longer if rng.random() < 0.3)
    workers = replace(scenario.workers, load_failures=rng.choice([0.3, 0.6]))
    scenario = replace(scenario, arrivals=(*parts, *longer, *again), aborts=gone, workers=workers)
    scenario = _failing_alone(rng, scenario)
    return _with(scenario, max_num_batched_tokens=rng.choice([48, 200, 400]))


def reset(rng: random.Random) -> Scenario:
    """Resets of vLLM's cache and of the connector's: at rest, while requests run or wait with a hit, and during loads."""
    if rng.random() < 0.5:
        scenario = retry(rng)
        waits = [each for each in scenario.arrivals if each.id.startswith("waits")]
        more = tuple(
            CachesReset(
                each.at_step + rng.randrange(6), connector=True, prefix_cache=rng.random() < 0.5, when=When.MATCHED
            )
            for each in waits
            if rng.random() < 0.6
        )
        return replace(scenario, resets=(*scenario.resets, *more))
    scenario = _waves(rng)
    extra = [CachesReset(rng.randrange(300), connector=True) for _ in range(4)]
    extra.append(CachesReset(rng.randrange(300), prefix_cache=False, connector=True))
    extra += [CachesReset(rng.randrange(300), prefix_cache=False, connector=True, when=When.LOADING) for _ in range(2)]
    return replace(scenario, resets=(*scenario.resets, *extra))


def identity(rng: random.Random) -> Scenario:
    """Equal tokens with different cache salts or adapters, and so with different KV."""
    scenario = _waves(rng)
    salts, adapters = ("", "", "one", "other"), ("", "", "adapter")
    arrivals = tuple(
        replace(each, salt=rng.choice(salts), adapter=rng.choice(adapters), prompt=each.prompt[:1])
        if rng.random() < 0.7
        else each
        for each in scenario.arrivals
    )
    return _with_twins(replace(scenario, arrivals=arrivals), rng)


def same_id(rng: random.Random) -> Scenario:
    """Request ids that are used again after an end or an abort, with another prompt or a part of the old one."""
    scenario = _waves(rng) if rng.random() < 0.5 else retry(rng)
    ids = {each.id: f"id-{rng.randrange(4)}" for each in scenario.arrivals}
    arrivals = tuple(
        replace(
            each, id=ids[each.id], prompt=each.prompt if rng.random() < 0.7 else (each.prompt[0], *_rest(rng, each))
        )
        for each in scenario.arrivals
    )
    gone = tuple(Abort(each.id, each.at_step + rng.randrange(12)) for each in arrivals if rng.random() < 0.2)
    return replace(scenario, arrivals=arrivals, aborts=gone)


def full_store(rng: random.Random) -> Scenario:
    """More prefixes than a store may hold: it evicts stored prefixes while requests wait for blocks to load them, and in the
    step that loads them."""
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    heads = [_segment(rng, f"head-{n}", BLOCK_SIZE * rng.randrange(4, 16)) for n in range(4)]
    for number in range(8):
        at_step = number * 70
        for which, length in (("first", 940), ("second", 940)):
            arrivals.append(Arrival(f"{which}-{number}", (_fresh(rng, length),), rng.randrange(20, 40), at_step))
        for n in range(rng.randrange(1, 4)):
            prompt = (rng.choice(heads), _fresh(rng, rng.randrange(40, 500)))
            arrivals.append(Arrival(f"waits-{number}-{n}", prompt, 3, at_step + rng.randrange(40)))
        if number and rng.random() < 0.5:
            arrivals.append(replace(arrivals[0], id=f"again-{number}", at_step=at_step + 50))
        resets.append(CachesReset(at_step + 69))
    workers = Workers(latest_steps=rng.choice([0, 4]), seed=rng.randrange(10**6))
    pool = rng.choice([64, 80])
    scenario = Scenario(
        arrivals=tuple(arrivals), resets=tuple(resets), num_blocks=pool, workers=workers, seed=rng.randrange(10**6)
    )
    return _with_evictions_beside_loads(_aborted_while_deferred(scenario), rng)


def crowd(rng: random.Random) -> Scenario:
    """Many short requests, to find state that grows with their number."""
    head = _segment(rng, "head", 2 * BLOCK_SIZE)
    arrivals = tuple(
        Arrival(f"c-{n}", (head, _fresh(rng, 8)) if n % 4 else (_fresh(rng, 20),), 1, n // 20) for n in range(1100)
    )
    gone = tuple(Abort(each.id, each.at_step) for each in arrivals if rng.random() < 0.05)
    scenario = Scenario(arrivals=arrivals, aborts=gone, num_blocks=96, seed=rng.randrange(10**6))
    return _with(scenario, max_num_batched_tokens=1024)


def handoff(rng: random.Random) -> Scenario:
    """Prompts that are computed here for another engine, as in disaggregated prefilling, and some others."""
    scenario = _waves(rng)
    handed_on = tuple(
        replace(each, max_tokens=1, handed_on=True) if rng.random() < 0.6 else each for each in scenario.arrivals
    )
    gone = tuple(Abort(each.id, each.at_step + rng.randrange(6)) for each in handed_on if rng.random() < 0.1)
    return replace(scenario, arrivals=handed_on, aborts=gone)


def spec_decode(rng: random.Random) -> Scenario:
    """Speculative tokens, some of them rejected: their KV must not be stored before they are accepted."""
    scenario = _crowd(rng, requests=20, prompts=(100, 500), outputs=(20, 80), pool=(64, 100), pace=4)
    return replace(scenario, drafts=rng.choice([1, 3]))


def ranks(rng: random.Random) -> Scenario:
    """Two tensor-parallel ranks: each has its own bytes, and one completes its transfers later than the other."""
    scenario = rng.choice([asynchronous, load_failure, preemption_storm, reset])(rng)
    return _with(scenario, tensor_parallel_size=2)


def groups(rng: random.Random) -> Scenario:
    """Two KV cache groups, full attention and a sliding window, in either order, each with its own blocks."""
    scenario = rng.choice([asynchronous, chunked_prefill, preemption_storm])(rng)
    both = CacheGroup(FULL), CacheGroup(SLIDING, window=rng.choice([40, 64, 200]))
    return replace(scenario, groups=both if rng.random() < 0.5 else both[::-1], num_blocks=2 * scenario.num_blocks)


def states(rng: random.Random) -> Scenario:
    """A recurrent state beside full attention, and perhaps a sliding window. vLLM's own cache may find a part of a block."""
    scenario = groups(rng)
    beside = [group for group in scenario.groups if group.kind == SLIDING and rng.random() < 0.5] + [CacheGroup(MAMBA)]
    if rng.random() < 0.5:
        scenario = _with(scenario, prefix_match_unit=BLOCK_SIZE // 2)
    return replace(
        scenario, groups=(CacheGroup(FULL), *beside), num_blocks=scenario.num_blocks * (1 + len(beside)) // 2
    )


def block_sizes(rng: random.Random) -> Scenario:
    """Groups with blocks of two sizes: full attention beside a sliding window, or beside a recurrent state, whose blocks
    limit vLLM's steps. Groups with blocks of one size, where vLLM requires that: beside chunked local attention, or beside
    states of all blocks."""
    scenario = rng.choice([asynchronous, chunked_prefill, preemption_storm])(rng)
    small, large = BLOCK_SIZE // 2, BLOCK_SIZE
    full, beside = rng.choice([
        (small, CacheGroup(SLIDING, large, window=rng.choice([40, 64, 200]))),
        (large, CacheGroup(SLIDING, small, window=rng.choice([40, 64, 200]))),
        (small, CacheGroup(MAMBA, large)),
        (large, CacheGroup(MAMBA, large, cache_mode=ALL)),
        (large, CacheGroup(CHUNKED, large, window=rng.choice([64, 128, 256]))),
    ])  # fmt: skip
    num_blocks = (large // full + 1) * scenario.num_blocks
    return replace(scenario, groups=(CacheGroup(FULL, full), beside), num_blocks=num_blocks)


def multi(rng: random.Random) -> Scenario:
    """The connector is the second child of a MultiConnector, after our OffloadConnector: it is asked but not chosen."""
    return _with(_waves(rng), disable_hybrid_kv_cache_manager=True)


def mixed(rng: random.Random) -> Scenario:
    """Something of everything."""
    scenario = _crowd(rng, requests=40, prompts=(30, 800), outputs=(1, 80), pool=(48, 100), pace=4)
    aborts = tuple(Abort(a.id, a.at_step + rng.randrange(60)) for a in rng.sample(scenario.arrivals, k=4))
    resets = tuple(
        CachesReset(rng.randrange(300), running=rng.random() < 0.3, connector=rng.random() < 0.3) for _ in range(5)
    )
    arrivals = tuple(replace(each, priority=rng.randrange(3)) for each in scenario.arrivals)
    scenario = replace(scenario, arrivals=arrivals, aborts=aborts, resets=resets)
    return _with(
        _aborted_while_deferred(scenario),
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        max_num_batched_tokens=rng.choice([48, 96]),
    )


def combined(rng: random.Random) -> Scenario:
    """Several events in the life of one request: it waits with a hit, shares blocks that fail to load, is preempted or
    aborted, and arrives again, perhaps longer or with the same id. Each family of prompts arrives four times: it is stored;
    it arrives longer, and waits for requests that hold most blocks; several requests load it at once; and one after the
    other."""
    arrivals: list[Arrival] = []
    aborts: list[Abort] = []
    resets: list[CachesReset] = []
    at_step = 0

    def come(name: str, prompt: tuple[Segment, ...], begin: int, share: float, *whens: When) -> None:
        """Add a request, and with this probability its abort: in one of these states, or a few steps later."""
        arrivals.append(Arrival(name, prompt, rng.choice((1, 8, 40)), begin))
        if rng.random() < share:
            when = rng.choice((None, *whens))
            aborts.append(Abort(name, begin + (0 if when else rng.randrange(1, 7)), when))

    for number in range(4):
        head = _fresh(rng, BLOCK_SIZE * rng.randrange(2, 7))
        family: list[tuple[Segment, ...]] = [
            (head, _fresh(rng, rng.randrange(1, 200))) for _ in range(rng.randrange(2, 4))
        ]
        longer: list[tuple[Segment, ...]] = [(*prompt, _fresh(rng, rng.randrange(1, 200))) for prompt in family]
        for which, prompt in enumerate(family):
            come(f"{number}-{which}", prompt, at_step + rng.randrange(3), 0.2)
        at_step += rng.randrange(10, 20)
        resets.append(CachesReset(at_step - 1, running=rng.random() < 0.5, connector=rng.random() < 0.1))
        fills: list[tuple[Segment, ...]] = [(_fresh(rng, rng.randrange(600, 900)),) for _ in range(2)]
        arrivals += [Arrival(f"{number}-fills-{which}", prompt, 40, at_step) for which, prompt in enumerate(fills)]
        for which, prompt in enumerate(longer):
            name = f"{number}-{which}" if rng.random() < 0.3 else f"{number}-{which}-waits"
            come(name, prompt, at_step + rng.randrange(5, 20), 0.6, When.MATCHED, When.MATCHED, When.PREEMPTED)
        if rng.random() < 0.3:
            resets.append(CachesReset(at_step, connector=True, prefix_cache=False, when=When.MATCHED))
        at_step += rng.randrange(30, 60)
        resets.append(CachesReset(at_step - 1, running=rng.random() < 0.7))
        come(f"{number}-evicts", (_fresh(rng, rng.randrange(200, 500)),), at_step + rng.randrange(3), 0.3)
        for which, prompt in enumerate(longer):
            come(f"{number}-{which}-together", prompt, at_step + rng.randrange(3), 0.4, When.LOADING, When.FAILED)
        at_step += rng.randrange(10, 20)
        for which, prompt in enumerate(longer):
            resets.append(CachesReset(at_step - 1, running=rng.random() < 0.7))
            come(f"{number}-{which}-alone", prompt, at_step, 0.0)
            at_step += 10
    return Scenario(
        arrivals=tuple(arrivals),
        aborts=tuple(aborts),
        resets=tuple(resets),
        num_blocks=rng.choice((40, 52)),
        settings={"max_num_batched_tokens": rng.choice((96, 200, 512))},
        workers=Workers(
            latest_steps=rng.choice((0, 2, 6)), load_failures=rng.choice((0.0, 0.4)), seed=rng.randrange(10**6)
        ),
        seed=rng.randrange(10**6),
    )


def room(rng: random.Random) -> Scenario:
    """A store that is always full: more prefixes than a small one holds, and half of them arrive again at once. Equal prompts
    arrive in one step, and some clients disconnect while their requests wait or load."""
    heads = [_fresh(rng, BLOCK_SIZE * rng.randrange(8, 25)) for _ in range(9)]
    head = heads[0]
    arrivals: list[Arrival] = []
    aborts: list[Abort] = []
    at_step = 0
    for number in range(28):
        if rng.random() < 0.5:
            head = rng.choice(heads)
        tail = () if rng.random() < 0.3 else (_fresh(rng, rng.randrange(20, 200)),)
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
    """A store that is always full and reports KV cache events, as for a router. Unlike in `room`, no two resets happen in one
    step."""
    scenario = room(rng)
    resets = {each.at_step: each for each in scenario.resets}
    return replace(scenario, resets=tuple(resets.values()), settings={**scenario.settings, **KV_EVENTS})


def shared_loads(rng: random.Random) -> Scenario:
    """Two or three requests load one short prefix, and their loads begin and end at different times. Meanwhile, prompts
    arrive that fill a small store, which evicts prefixes that no load needs."""
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    for number in range(6):
        at_step, head = 90 * number, _fresh(rng, BLOCK_SIZE * rng.randrange(2, 6) + 1)
        arrivals.append(Arrival(f"stores-{number}", (head,), 1, at_step))
        at_step += 30
        resets.append(CachesReset(at_step))
        for load in range(rng.randrange(2, 4)):
            at_step += rng.randrange(1, 3)
            arrivals.append(Arrival(f"loads-{number}-{load}", (head, _fresh(rng, 5)), 1, at_step))
        for new in range(3):
            at_step += rng.randrange(1, 5)
            prompt = (_fresh(rng, BLOCK_SIZE * rng.randrange(8, 20) + 1),)
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
    """Seven hundred short prompts of one length without shared prefixes: if two of them have the same key, one finds the KV
    of the other."""
    length = rng.choice((2 * BLOCK_SIZE, 4 * BLOCK_SIZE)) + 1
    arrivals = tuple(Arrival(f"p-{n}", (_fresh(rng, length),), 1, n // 8) for n in range(700))
    settings = {"max_num_batched_tokens": 2048}
    return Scenario(arrivals=arrivals, num_blocks=96, settings=settings, seed=rng.randrange(10**6))


def conversation(rng: random.Random) -> Scenario:
    """Conversations: each turn extends the previous one and its answer. Blocks are scarce, so some answers are computed in
    two parts with a preemption between them, and the next turn loads them."""
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    for talk in range(rng.randrange(4, 7)):
        history: tuple[Segment, ...] = (_fresh(rng, rng.randrange(60, 250)),)
        at_step = rng.randrange(30)
        for turn in range(4):
            answer = _fresh(rng, rng.randrange(20, 90))
            arrival = Arrival(f"talk-{talk}-{turn}", history, answer[1], at_step, output=(answer,))
            if arrival.length + answer[1] > LONGEST:
                break
            arrivals.append(arrival)
            history = (*history, answer, _fresh(rng, rng.randrange(8, 80)))
            at_step += answer[1] + rng.randrange(20, 60)
            resets.append(CachesReset(at_step - 1, running=rng.random() < 0.2))
    return Scenario(
        arrivals=tuple(arrivals),
        resets=tuple(resets),
        num_blocks=rng.randrange(36, 64),
        settings={"max_num_batched_tokens": rng.choice((48, 200))},
        workers=Workers(latest_steps=rng.choice((0, 4)), seed=rng.randrange(10**6)),
        seed=rng.randrange(10**6),
    )


def no_prefix_caching(rng: random.Random) -> Scenario:
    """vLLM without its own prefix cache: lookups begin at token 0, and repeated prompts are loaded."""
    scenario = _with_resets_beside_stores(rng.choice([asynchronous, mixed, room])(rng), rng)
    return _with(scenario, enable_prefix_caching=False)


def failed_requests(rng: random.Random) -> Scenario:
    """Loads fail, and vLLM ends their requests, which is the default of its `kv_load_failure_policy`."""
    return replace(load_failure(rng), recompute=False)


def handoffs(rng: random.Random) -> Scenario:
    """One engine prefills and another one decodes: requests queue and are aborted at every point of the hand-off, messages
    arrive late and out of order, leases expire, and some transfers fail."""
    return drawn(rng.randrange(10**6), failing=rng.choice((0.0, 0.2)))


def handoff_ranks(rng: random.Random) -> Scenario:
    """Hand-offs with two tensor-parallel ranks in one engine or in both."""
    ranks = rng.choice(((1, 2), (2, 1), (2, 2)))
    return drawn(rng.randrange(10**6), failing=rng.choice((0.0, 0.2)), ranks=ranks)


PROFILES: dict[str, Callable[[random.Random], Scenario]] = {
    "combined": combined,
    "load-failure": load_failure,
    "conversation": conversation,
    "abort": abort,
    "mixed": mixed,
    "full-store": full_store,
    "preemption-storm": preemption_storm,
    "chunked-prefill": chunked_prefill,
    "retry": retry,
    "room": room,
    "many-prefixes": many_prefixes,
    "async": asynchronous,
    "reset": reset,
    "identity": identity,
    "same-id": same_id,
    "crowd": crowd,
    "handoff": handoff,
    "spec-decode": spec_decode,
    "multi": multi,
    "ranks": ranks,
    "groups": groups,
    "states": states,
    "block-sizes": block_sizes,
    "kv-events": kv_events,
    "no-prefix-caching": no_prefix_caching,
    "failed-requests": failed_requests,
    "shared-loads": shared_loads,
}
"""The profiles of one engine."""
PAIR_PROFILES: dict[str, Callable[[random.Random], Scenario]] = {
    "handoffs": handoffs,
    "handoff-ranks": handoff_ranks,
}
"""The profiles of two engines, for connectors that hand over between engines."""
OFTEN = (
    "combined", "load-failure", "conversation", "combined", "abort", "mixed", "load-failure", "combined", "full-store",
    "preemption-storm",
)  # fmt: skip
"""The profiles that find the most failures. They come first in each round, some of them several times."""
ORDER = (*PAIR_PROFILES, *OFTEN, *(name for name in PROFILES if name not in OFTEN))
"""A round of `kvtrail check`."""
SMALL = ("room", "kv-events", "shared-loads")
"""The profiles for which a known connector gets a small store (`settings_when_full`)."""
NOT_FOR_ALL = ("ranks", "groups", "states", "block-sizes", "no-prefix-caching")
"""Profiles that a connector may refuse."""


def scenario_of(profile: str, seed: int) -> Scenario:
    """The scenario of a profile and a seed: always the same."""
    return (PAIR_PROFILES | PROFILES)[profile](random.Random(f"{profile}/{seed}"))


def _crowd(
    rng: random.Random,
    *,
    requests: int,
    prompts: tuple[int, int],
    outputs: tuple[int, int],
    pool: tuple[int, int],
    pace: int,
) -> Scenario:
    """Requests that begin with one of a few prefixes, one every `pace` steps on average. Some prompts consist of a prefix
    alone, so that they are full hits the second time, and some prompts are repeated."""
    heads = [_segment(rng, f"head-{n}", BLOCK_SIZE * rng.randrange(4, 16)) for n in range(3)]
    arrivals: list[Arrival] = []
    at_step = 0
    for number in range(requests):
        head = rng.choice(heads)
        rest = rng.randrange(*prompts) - head[1]
        prompt: tuple[Segment, ...] = (head, _fresh(rng, rest)) if rest > 0 and rng.random() < 0.85 else (head,)
        if arrivals and rng.random() < 0.15:
            prompt = rng.choice(arrivals).prompt
        arrivals.append(Arrival(f"r-{number}", prompt, rng.randrange(*outputs), at_step))
        at_step += rng.randrange(2 * pace + 1)
    return Scenario(
        arrivals=tuple(arrivals),
        num_blocks=rng.randrange(*pool),
        workers=Workers(latest_steps=rng.choice([0, 4]), seed=rng.randrange(10**6)),
        seed=rng.randrange(10**6),
    )


def _waves(rng: random.Random) -> Scenario:
    """Waves of the same prefixes, with vLLM's cache reset in between: each wave loads from the connector."""
    heads = [_segment(rng, f"head-{n}", BLOCK_SIZE * rng.randrange(4, 12)) for n in range(2)]
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    for wave in range(8):
        at_step = wave * 40
        for number in range(rng.randrange(1, 4)):
            tail = () if wave > 4 and rng.random() < 0.5 else (_fresh(rng, rng.randrange(20, 120)),)
            prompt = (heads[number % 2], *tail)
            arrivals.append(Arrival(f"w{wave}-{number}", prompt, rng.randrange(1, 8), at_step + 3 * number))
        resets.append(CachesReset(at_step + 39))
    return Scenario(
        arrivals=tuple(arrivals),
        resets=tuple(resets),
        workers=Workers(latest_steps=3, seed=rng.randrange(10**6)),
        seed=rng.randrange(10**6),
    )


def _failing_alone(rng: random.Random, scenario: Scenario) -> Scenario:
    """Add requests at the end that load a prefix which no other request has: alternately one that is aborted after its load
    has failed, and two in one step, which share the blocks. No other request computes the tokens after the failed load, so
    when the same prompts arrive again, they show whether those tokens were stored. The prompts are short, so that a small
    store keeps them until then."""
    arrivals, aborts, resets = list(scenario.arrivals), list(scenario.aborts), list(scenario.resets)
    fails: list[tuple[str, int]] = []
    begin = max([each.at_step for each in arrivals] + [each.at_step for each in resets]) + 40
    for number in range(6):
        head, at_step = _segment(rng, "alone", BLOCK_SIZE * (rng.randrange(4, 8) // 2)), begin + number * 40
        name, length = _fresh(rng, rng.randrange(70, 160))
        arrivals.append(Arrival(f"stores-{number}", (head, _fresh(rng, 1)), 1, at_step))
        for which in ("fails", "shares")[: 1 + number % 2]:
            prompt = (head, (f"{name}-{which}", length))
            arrivals.append(Arrival(f"{which}-{number}", prompt, 1, at_step + 14))
            arrivals.append(Arrival(f"asks-{which}-{number}", prompt, 1, at_step + 28))
        fails.append((wait(f"fails-{number}", 0), number // 2 % 2))
        if not number % 2:
            aborts.append(Abort(f"fails-{number}", at_step + 14, When.FAILED))
        resets += [CachesReset(at_step + after, running=True) for after in (13, 27)]
    workers = replace(scenario.workers, fails=tuple(fails))
    return replace(scenario, arrivals=tuple(arrivals), aborts=tuple(aborts), resets=tuple(resets), workers=workers)


def _aborted_while_deferred(scenario: Scenario) -> Scenario:
    """Abort every third request as soon as a lookup is answered with 'ask me later': the connector must release what it keeps
    or fetches for it."""
    gone = tuple(Abort(each.id, each.at_step, When.DEFERRED) for each in scenario.arrivals[::3])
    return replace(scenario, aborts=(*scenario.aborts, *gone))


def _with_twins(scenario: Scenario, rng: random.Random) -> Scenario:
    """Add requests at the end with one of these prompts, all in one step, each with another salt or adapter; some of these
    identities have stored the prompt."""
    first = rng.choice(scenario.arrivals)
    at_step = _after(scenario)
    identities = rng.sample([("", ""), (first.salt, first.adapter), ("one", ""), ("other", ""), ("", "adapter")], k=4)
    twins = tuple(
        replace(first, id=f"twin-{n}", salt=salt, adapter=adapter, at_step=at_step, max_tokens=3)
        for n, (salt, adapter) in enumerate([(first.salt, first.adapter), *identities])
    )
    return _at_last(scenario, twins, [CachesReset(at_step - 1)])


def _with_evictions_beside_loads(scenario: Scenario, rng: random.Random) -> Scenario:
    """Add short prompts at the end that were just stored, each in one step with a new long prompt, for which a small store
    evicts them."""
    at_step = _after(scenario)
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    for number in range(4):
        prompt = (_segment(rng, f"short-{number}", BLOCK_SIZE * rng.randrange(4, 14)),)
        arrivals += (
            Arrival(f"stores-{number}", prompt, 2, at_step),
            Arrival(f"loads-{number}", (*prompt, _fresh(rng, 10)), 2, at_step + 12),
            Arrival(f"evicts-{number}", (_fresh(rng, 700),), 2, at_step + 12),
        )
        resets.append(CachesReset(at_step + 11))
        at_step += 40
    return _with(_at_last(scenario, arrivals, resets), max_num_batched_tokens=rng.choice([48, 512]))


def _with_resets_beside_stores(scenario: Scenario, rng: random.Random) -> Scenario:
    """Reset the connector at the end while short prompts are being stored; they arrive again at once, and again before they
    are stored."""
    arrivals: list[Arrival] = []
    resets: list[CachesReset] = []
    at_step = _after(scenario)
    for number in range(8):
        prompt = (_segment(rng, f"short-{number}", BLOCK_SIZE * rng.randrange(2, 5) + 1),)
        arrivals.append(Arrival(f"stores-{number}", prompt, 1, at_step))
        at_step += rng.randrange(1, 5)
        resets.append(CachesReset(at_step, connector=True, prefix_cache=False))
        for turn in range(4):
            at_step += rng.randrange(1, 4)
            arrivals.append(Arrival(f"again-{number}-{turn}", (*prompt, _fresh(rng, 9 * turn + 1)), 1, at_step))
        at_step += 30
    workers = replace(scenario.workers, latest_steps=max(4, scenario.workers.latest_steps))
    return _at_last(replace(scenario, workers=workers), arrivals, resets)


def _after(scenario: Scenario) -> int:
    """A step after most of a scenario."""
    return max(each.at_step for each in scenario.arrivals) + 200


def _at_last(scenario: Scenario, arrivals: Iterable[Arrival], resets: Iterable[CachesReset]) -> Scenario:
    return replace(scenario, arrivals=(*scenario.arrivals, *arrivals), resets=(*scenario.resets, *resets))


def _growing(rng: random.Random) -> Scenario:
    """Many short prompts with long outputs, which grow until the pool is exhausted."""
    arrivals = tuple(Arrival(f"r-{n}", (_fresh(rng, 40),), 300) for n in range(16))
    return _with(Scenario(arrivals=arrivals, seed=rng.randrange(10**6)), max_num_batched_tokens=48)


def _segment(rng: random.Random, name: str, count: int) -> Segment:
    return (f"{name}-{rng.randrange(10**6)}", count)


def _fresh(rng: random.Random, count: int) -> Segment:
    return (f"{rng.randrange(10**9)}", count)


def _rest(rng: random.Random, arrival: Arrival) -> tuple[Segment, ...]:
    """Another end for a prompt, if it fits."""
    room = MAX_LENGTH - arrival.max_tokens - arrival.prompt[0][1]
    return (_fresh(rng, min(150, room)),) if room > 0 else ()


def _with(scenario: Scenario, **settings: object) -> Scenario:
    return replace(scenario, settings={**scenario.settings, **settings})
