"""From a recording to a scenario: what arrived when, how long it was, what it shared, and what the engine was like."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvtrail.connector.simulate.redrive.sharing import Known, prompts
from kvtrail.connector.simulate.scenario import Abort, Arrival, Reset, Scenario, Workers, job, wait
from kvtrail.tracer.detect.account import SCHEDULER
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import (
    Alloc,
    CacheReset,
    Event,
    Lookup,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
    Schedule,
    Sent,
    TransferEnd,
)
from kvtrail.tracer.model.events import Reset as ConnectorReset
from kvtrail.tracer.replay.hashes import split
from kvtrail.tracer.replay.history import History

SPARE_STEPS = 2000
"""Steps beyond the recorded ones, for what takes longer this time."""
UNTOLD_OUTPUT = 16
"""Tokens that a request generates of which the recording does not say how many."""
DEFAULT_BLOCKS = 64
AGAIN = "~"
"""Between a request's id and how often it had been used before."""


class NotDrivable(ValueError):
    """The history does not hold what it takes to drive it again; the text says what is missing."""


@dataclass(slots=True)
class Life:
    """A request of the recording, from its start to its end.

    Attributes:
        id: the engine's; with a suffix, if it had been used before.
        start, end: their events; `end` is None if the recording ends before.
        lookups, preemptions: in their order.
    """

    id: str
    start: RequestStart
    end: RequestEnd | None = None
    lookups: list[Lookup] = field(default_factory=list)
    preemptions: list[Preempt] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a recording says of its engine and its requests.

    Attributes:
        scenario: to be played.
        lives: the recorded requests, in the order of their arrival, by the scenario's ids.
        connector: the traced connector's name; of a MultiConnector, the first child's.
        settings: the numbers and truth values of the connector's configuration.
        notes: what is guessed, and why.
    """

    scenario: Scenario
    lives: Mapping[str, Life]
    connector: str
    settings: Mapping[str, Any]
    notes: Sequence[str]


def workload_of(history: History, *, recorder: str | None = None) -> Workload:
    """What one engine of a history did, as a scenario.

    Raises:
        NotDrivable: it holds no requests of a scheduler, or of several engines, and none is named.
    """
    recorder = _recorder(history, recorder)
    resource = history.resource(recorder)
    events = [e for e in history.events if e.recorder == recorder and e.role in (SCHEDULER, "")]
    connector_id = next(e.connector_id for e in events if isinstance(e, RequestStart))
    events = [e for e in events if e.connector_id == connector_id or not isinstance(e, Lookup | Alloc)]
    lives = _lives(events)
    steps = _steps(events)
    notes = [] if all(life.start.scheduler_step is not None for life in lives.values()) else [_GUESSED_STEPS]
    block_size = int(resource.get(semconv.BLOCK_SIZE.key) or _block_size(events))
    known = {name: _known(life) for name, life in lives.items()}
    if any(each.hashes is None for each in known.values()):
        notes.append(_GUESSED_PREFIXES)
    made = prompts(known, block_size=block_size)
    arrivals = tuple(
        Arrival(
            name,
            prompt=made[name][0],
            max_tokens=_max_tokens(life),
            at_step=steps[life.start.sequence],
            priority=life.start.request_priority or 0,
            output=made[name][1],
        )
        for name, life in lives.items()
    )
    settings, more = _settings(resource)
    return Workload(
        scenario=Scenario(
            arrivals=arrivals,
            aborts=tuple(_aborts(lives, steps)),
            resets=tuple(_resets(events, steps)),
            num_blocks=int(resource.get(semconv.POOL_BLOCKS.key) or DEFAULT_BLOCKS),
            block_size=block_size,
            drafts=int(resource.get(semconv.DRAFTS.key) or 0),
            settings=settings,
            workers=Workers(ends=tuple(_ends(events))),
            most_steps=max(steps.values(), default=0) + SPARE_STEPS,
        ),
        lives=lives,
        connector=next((e.connector for e in events if isinstance(e, Lookup)), ""),
        settings=json.loads(resource.get(semconv.CONNECTOR_SETTINGS.key) or "{}"),
        notes=(*notes, *more),
    )


_GUESSED_STEPS = (
    "The recording does not say in which scheduling steps requests arrived (an older kvtrail's, or a log): it is guessed by"
    " the order of events."
)
_GUESSED_PREFIXES = (
    "The recording holds no block hashes (they are told at level `detailed`): who shares a prefix with whom is guessed by"
    " lengths."
)
_GUESSED_POOL = "The recording does not say how many KV blocks the engine had: {} are taken."


def lives_of(events: Sequence[Event]) -> dict[str, Life]:
    """The requests of a run, by the ids that `workload_of` gives them."""
    return _lives(events)


def _recorder(history: History, name: str | None) -> str:
    found = {e.recorder: e.engine for e in history.events if isinstance(e, RequestStart) and e.role == SCHEDULER}
    if name is not None:
        found = {recorder: engine for recorder, engine in found.items() if name in (engine, recorder)}
    if not found:
        what = "no request of a scheduler begins in it" if name is None else f"no recorder or engine {name!r} is in it"
        raise NotDrivable(f"the history cannot be driven again: {what}")
    if len(found) > 1:
        named = ", ".join(f"{recorder} (engine {engine})" for recorder, engine in sorted(found.items()))
        raise NotDrivable(f"the history is of several engines; say which one: {named}")
    return next(iter(found))


def _lives(events: Sequence[Event]) -> dict[str, Life]:
    lives: dict[str, Life] = {}
    latest: dict[str, Life] = {}
    for event in events:
        if event.request is None:
            continue
        life = latest.get(event.request)
        if isinstance(event, RequestStart):
            if life is not None and life.end is None:
                continue  # another child of a MultiConnector tells it again
            used = sum(each.start.request == event.request for each in lives.values()) if life is not None else 0
            life = Life(f"{event.request}{AGAIN}{used + 1}" if used else event.request, event)
            lives[life.id] = latest[event.request] = life
        elif life is None:
            continue
        elif isinstance(event, Lookup):
            life.lookups.append(event)
        elif isinstance(event, Preempt):
            life.preemptions.append(event)
        elif isinstance(event, RequestEnd) and life.end is None:
            life.end = event
    return lives


def _steps(events: Sequence[Event]) -> dict[int, int]:
    """The scheduling step of each start, end and reset, by the event's number; guessed where it was not recorded: every
    moment at which something was scheduled or looked up again is a step."""
    steps: dict[int, int] = {}
    guessed, last_ns = 0, -1
    seen: set[str | None] = set()
    for event in events:
        told = getattr(event, "scheduler_step", None)
        if told is not None:
            steps[event.sequence] = told
        elif isinstance(event, RequestStart | RequestEnd | ConnectorReset | CacheReset):
            steps[event.sequence] = guessed
        elif isinstance(event, Lookup):
            if event.request in seen:  # a request is looked up once in a step
                guessed, seen = guessed + 1, set()
            seen.add(event.request)
        elif isinstance(event, Schedule) and event.start_ns != last_ns:
            guessed, last_ns, seen = guessed + 1, event.start_ns, set()
    return steps


def _known(life: Life) -> Known:
    first = life.lookups[0] if life.lookups else None
    length = life.start.total if life.start.total is not None else first.total if first is not None else 1
    told = [life.start.block_hashes, life.end.block_hashes if life.end is not None else None]
    short = length < (life.start.block_size or 1)  # it has no full block, and no hash to tell
    hashes = split("".join(each or "" for each in told)) if any(told) or short else None
    found = max(first.computed, first.matched or first.computed + (first.answer or 0)) if first is not None else 0
    is_local = first is not None and first.computed >= found
    return Known(length, _max_tokens(life), hashes, found, is_local)


def _max_tokens(life: Life) -> int:
    if life.end is not None and life.end.output and life.end.outcome != "aborted":
        return life.end.output
    return life.start.limit or UNTOLD_OUTPUT


def _aborts(lives: Mapping[str, Life], steps: Mapping[int, int]) -> list[Abort]:
    ends = ((name, life.end) for name, life in lives.items())
    return [Abort(name, steps[end.sequence]) for name, end in ends if end is not None and end.outcome == "aborted"]


def _ends(events: Sequence[Event]) -> Iterator[tuple[str, int]]:
    """When each transfer ended. A connector that numbers its jobs gives them the same numbers again."""
    waited: Counter[str] = Counter()
    for event in events:
        if not isinstance(event, Received | Sent | TransferEnd) or event.scheduler_step is None:
            continue
        if isinstance(event, TransferEnd):
            yield job(event.transfer_id), event.scheduler_step
        elif event.request is not None:
            yield wait(event.request, waited[event.request]), event.scheduler_step
            waited[event.request] += 1


def _resets(events: Sequence[Event], steps: Mapping[int, int]) -> list[Reset]:
    """vLLM's resets and the connector's; the two of one step are one call."""
    made: dict[int, Reset] = {}
    running: set[str | None] = set()
    for event in events:
        if isinstance(event, Schedule):
            running.add(event.request)
        elif isinstance(event, RequestEnd | Preempt):
            running.discard(event.request)
        elif isinstance(event, CacheReset):
            step = steps[event.sequence]
            made[step] = replace(made.get(step, Reset(step)), prefix_cache=True, running=bool(running))
        elif isinstance(event, ConnectorReset):
            step = steps[event.sequence]
            made[step] = replace(made.get(step, Reset(step, prefix_cache=False)), connector=True)
    return list(made.values())


def _block_size(events: Sequence[Event]) -> int:
    size = next((event.block_size for event in events if event.block_size), None)
    if size is None:
        raise NotDrivable(
            "the history cannot be driven again: its recorder does not say how many tokens a KV block has"
        )
    return size


def _settings(resource: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """vLLM's engine arguments, and what has to be guessed or is not so here."""
    known = {
        "max_num_batched_tokens": resource.get(semconv.MAX_BATCHED.key),
        "max_num_seqs": resource.get(semconv.MAX_SEQUENCES.key),
        "max_model_len": resource.get(semconv.MAX_LENGTH.key),
        "scheduling_policy": resource.get(semconv.POLICY.key),
        "scheduler_reserve_full_isl": resource.get(semconv.RESERVES.key),
        "enable_prefix_caching": resource.get(semconv.PREFIX_CACHING.key),
    }
    notes = [] if semconv.POOL_BLOCKS.key in resource else [_GUESSED_POOL.format(DEFAULT_BLOCKS)]
    if resource.get(semconv.ASYNC_SCHEDULING.key):
        notes.append("The engine scheduled asynchronously, a step ahead; here each step ends before the next begins.")
    return {name: value for name, value in known.items() if value is not None}, notes
