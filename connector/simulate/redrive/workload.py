"""Makes a scenario from a recording: arrivals, lengths, shared prefixes, and the engine's settings.

No prompt text is recorded, and none is needed: a connector depends only on the number of tokens and on which tokens are
equal. vLLM's hashes of full blocks show that: each represents the whole prefix up to the end of its block.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from kvtrail.connector.registration import found_again
from kvtrail.connector.simulate.redrive.recorded import RecordedRequest, recorded_requests
from kvtrail.connector.simulate.scenario import Abort, Arrival, CachesReset, Scenario, Segment, Workers, job, wait
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.cache_groups import ONE, CacheGroup, groups_of
from kvtrail.tracer.events.events import (
    Alloc,
    CacheReset,
    Event,
    LoadError,
    Lookup,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
    Reset,
    Schedule,
    Sent,
    TransferEnd,
)
from kvtrail.tracer.history.history import History
from kvtrail.tracer.ledger.account import SCHEDULER
from kvtrail.tracer.model.words import some

SPARE_STEPS = 2000
"""Number of steps beyond the recorded ones, since a re-drive may take longer."""


class NotDrivable(ValueError):
    """The history cannot be driven again; the text says what it lacks."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A recorded workload, with the engine and the connector of the recording.

    Attributes:
        scenario: the scenario to run.
        requests: the recorded requests by the scenario's ids, in the order of arrival.
        events: the events of the connector, in order.
        connector: the traced connector's name, or `module:Class` if vLLM does not know it; for a MultiConnector, that of the
            first child.
        connector_class: the name of its class.
        settings: the numbers and truth values of the connector's configuration.
        chunk_size: tokens per chunk of its store; None if unknown.
        notes: what is missing or guessed, and why, in sentences. With any notes, the workload may differ from the recorded
            one.
    """

    scenario: Scenario
    requests: Mapping[str, RecordedRequest]
    events: Sequence[Event]
    connector: str
    connector_class: str
    settings: Mapping[str, Any]
    chunk_size: int | None
    notes: Sequence[str]


def workload_of(history: History, *, recorder: str | None = None) -> Workload:
    """The scenario of one engine of a history.

    Raises:
        NotDrivable: it holds no requests of a scheduler, or those of several engines without a `recorder`.
    """
    recorder = _recorder(history, recorder)
    resource = history.resource(recorder)
    recorded = [e for e in history.events if e.recorder == recorder]
    events = [e for e in recorded if e.role in (SCHEDULER, "")]
    connector_id = next(e.connector_id for e in events if isinstance(e, RequestStart))
    events = [e for e in events if e.connector_id == connector_id or not isinstance(e, Lookup | Alloc)]
    requests = begun(events)
    last = max(_step(e) for e in events if isinstance(e, RequestStart | RequestEnd | Reset | CacheReset))
    starts = {name: request.start for name, request in requests.items() if request.start is not None}
    notes = []
    if missing := recorded[-1].sequence + 1 - len(recorded):
        notes.append(
            f"{some(missing, 'event')} of the recording are missing, so the load is not all of the recorded one."
        )
    block_size = _number(resource, semconv.BLOCK_SIZE.key, "how many tokens a KV block has")
    chunk_size = next((e.chunk_size for e in events if e.chunk_size), None)
    groups = _groups(resource)
    hash_size = _hash_size(requests, block_size) if groups else block_size
    made = segments(requests, block_size=hash_size)
    if unknown := sum(request.hashes is None for request in requests.values()):
        notes.append(
            f"The block hashes of {some(unknown, 'request')} are not recorded (they are at level `detailed`), so no prefix of"
            " theirs is shared here."
        )
    arrivals = tuple(
        Arrival(
            name,
            prompt=made[name][0],
            max_tokens=requests[name].max_tokens,
            at_step=_step(start),
            priority=start.request_priority or 0,
            output=made[name][1],
        )
        for name, start in starts.items()
    )
    fails, unknown = _fails(requests, events, block_size)
    if unknown:
        notes.append(
            f"{some(unknown, 'report')} of failed blocks cannot be traced to a load: that load does not fail here."
        )
    settings = _settings(resource)
    if resource.get(semconv.ASYNC_SCHEDULING.key):
        notes.append("The engine scheduled asynchronously, a step ahead; here each step ends before the next begins.")
    if hash_size < block_size:
        settings["prefix_match_unit"] = hash_size
    connector_class = next((e.connector for e in events if isinstance(e, Lookup)), None)
    if connector_class is None:
        raise NotDrivable("the history cannot be driven again: no lookup is in it, so the connector is not known")
    return Workload(
        scenario=Scenario(
            arrivals=arrivals,
            aborts=tuple(_aborts(requests)),
            resets=tuple(_resets(events)),
            num_blocks=_number(resource, semconv.POOL_BLOCKS.key, "how many KV blocks the engine had"),
            block_size=block_size,
            drafts=int(resource.get(semconv.DRAFTS.key) or 0),
            groups=groups,
            settings=settings,
            recompute=resource.get(semconv.LOAD_FAILURES.key) != "fail",
            workers=Workers(ends=tuple(_ends(events)), fails=fails),
            most_steps=last + SPARE_STEPS,
        ),
        requests=requests,
        events=events,
        connector=found_again(connector_class, resource.get(semconv.CONNECTOR_CLASS.key)),
        connector_class=connector_class,
        settings=_connector_settings(resource),
        chunk_size=chunk_size,
        notes=tuple(notes),
    )


_MAY_FAIL_LATER = ("aborted", "error")
"""Outcomes of requests whose loads may be reported as failed after the end: the load of an aborted request continues, and a
request ends with an error because of the load that is reported next."""


def begun(events: Sequence[Event]) -> dict[str, RecordedRequest]:
    """The requests of a run with a recorded start, by the ids of `Workload.scenario`."""
    return {name: request for name, request in recorded_requests(events).items() if request.start is not None}


def segments(
    requests: Mapping[str, RecordedRequest], *, block_size: int
) -> dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]]:
    """Each request's prompt and output as segments, in the order of arrival. A request without hashes shares no segments.

    Blocks that always follow each other become one segment, with the name of the first block.
    """
    chains: Mapping[str, Sequence[str]] = {name: request.hashes or () for name, request in requests.items()}
    after: dict[str, set[str]] = {}
    ends: Counter[str] = Counter()
    cuts: dict[str, set[int]] = {}
    """By block, the positions within it at which prompts end and outputs begin."""
    for name, request in requests.items():
        chain = ("", *chains[name])
        for one, next_one in pairwise(chain):
            after.setdefault(one, set()).add(next_one)
        ends[chain[-1]] += 1
        full, part = divmod(request.length, block_size)
        if full < len(chain):
            ends[chain[full]] += 1
        if part and full + 1 < len(chain):
            ends[chain[full + 1]] += 1
            cuts.setdefault(chain[full + 1], set()).add(part)

    def parts(block: str, start: int, end: int) -> list[Segment]:
        """A part of a cut block. All requests with the block have it in the same parts."""
        within = pairwise(sorted({0, *cuts[block], block_size}))
        return [(f"{block}/{one}", other - one) for one, other in within if start <= one and other <= end]

    def runs(blocks: Sequence[str]) -> list[Segment]:
        joined: list[Segment] = []
        before = ""
        for block in blocks:
            if block in cuts:
                joined += parts(block, 0, block_size)
            elif joined and len(after.get(before, ())) == 1 and not ends.get(before):
                joined[-1] = (joined[-1][0], joined[-1][1] + block_size)
            else:
                joined.append((block, block_size))
            before = block
        return joined

    made: dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]] = {}
    for name, request in requests.items():
        chain = tuple(chains[name])
        full, part = divmod(request.length, block_size)
        if part and full < len(chain):
            prompt = [*runs(chain[:full]), *parts(chain[full], 0, part)]
            output = [*parts(chain[full], part, block_size), *runs(chain[full + 1 :])]
        else:
            known_blocks = min(full, len(chain))
            prompt = [*runs(chain[:known_blocks]), *_rest(name, request.length - known_blocks * block_size)]
            made_up = min(request.max_tokens, -request.length % block_size)
            output = [*([(f"{name}/output", made_up)] if made_up else []), *runs(chain[full:])]
        made[name] = (tuple(prompt), tuple(output))
    return made


def _rest(name: str, tokens: int) -> list[Segment]:
    return [(f"{name}/rest", tokens)] if tokens > 0 else []


def _recorder(history: History, name: str | None) -> str:
    found = {e.recorder: e.engine for e in history.events if isinstance(e, RequestStart) and e.role == SCHEDULER}
    if name is not None:
        found = {recorder: engine for recorder, engine in found.items() if name in (engine, recorder)}
    if not found:
        what = "no request of a scheduler begins in it (a log does not show how requests begin)"
        if name is not None:
            what = f"no recorder or engine {name!r} is in it"
        raise NotDrivable(f"the history cannot be driven again: {what}")
    if len(found) > 1:
        named = ", ".join(f"{recorder} (engine {engine})" for recorder, engine in sorted(found.items()))
        raise NotDrivable(f"the history is of several engines; say which one: {named}")
    return next(iter(found))


def _step(event: RequestStart | RequestEnd | Reset | CacheReset) -> int:
    """The scheduling step of an event.

    Raises:
        NotDrivable: it is not recorded.
    """
    if event.scheduler_step is None:
        raise NotDrivable(
            "the history cannot be driven again: it does not say in which scheduling step each request arrived and ended"
        )
    return event.scheduler_step


def _aborts(requests: Mapping[str, RecordedRequest]) -> list[Abort]:
    ends = ((name, request.end) for name, request in requests.items())
    return [Abort(name, _step(end)) for name, end in ends if end is not None and end.outcome == "aborted"]


def _ends(events: Sequence[Event]) -> Iterator[tuple[str, int]]:
    """The name and the last step of each transfer. A connector that numbers its jobs gives them the same numbers again."""
    waited: Counter[str] = Counter()
    for event in events:
        if not isinstance(event, Received | Sent | TransferEnd) or event.scheduler_step is None:
            continue
        if isinstance(event, TransferEnd):
            yield job(event.transfer_id), event.scheduler_step
        elif event.request is not None:
            yield wait(event.request, waited[event.request]), event.scheduler_step
            waited[event.request] += 1


def _fails(
    requests: Mapping[str, RecordedRequest], events: Sequence[Event], block_size: int
) -> tuple[tuple[tuple[str, int], ...], int]:
    """The failed loads, each with the index of its first failed block; and the number of reports of failed blocks that belong
    to no known load."""
    fails: list[tuple[str, int]] = []
    unknown = 0
    names = {id(event): name for name, request in requests.items() for event in request.events}
    computed: dict[str, int] = {}
    loading: dict[str, tuple[int, ...]] = {}
    loads: Counter[str] = Counter()
    for event in events:
        name = names.get(id(event), "")
        if isinstance(event, LoadError):
            failed, found = set(event.blocks_ids), len(fails)
            for other, blocks in tuple(loading.items()):
                if first := [number for number, block in enumerate(blocks) if block in failed]:
                    del loading[other]
                    fails.append((wait(other, loads[other] - 1), first[0]))
            unknown += len(fails) == found
        elif isinstance(event, Lookup):
            computed[name] = event.computed
        elif isinstance(event, Alloc) and event.allocated:
            loads[name] += 1
            start = computed.get(name, 0)
            loading[name] = (event.blocks_ids or ())[start // block_size : -(-(start + event.allocated) // block_size)]
        elif isinstance(event, Preempt) or (isinstance(event, RequestEnd) and event.outcome not in _MAY_FAIL_LATER):
            loading.pop(name, None)
    return tuple(fails), unknown


def _resets(events: Sequence[Event]) -> list[CachesReset]:
    """The resets of vLLM's cache and of the connector's; two of them in the same step are one call."""
    made: dict[int, CachesReset] = {}
    running: set[str | None] = set()
    for event in events:
        if isinstance(event, Schedule):
            running.add(event.request)
        elif isinstance(event, RequestEnd | Preempt):
            running.discard(event.request)
        elif isinstance(event, CacheReset):
            step = _step(event)
            made[step] = replace(made.get(step, CachesReset(step)), prefix_cache=True, running=bool(running))
        elif isinstance(event, Reset):
            step = _step(event)
            made[step] = replace(made.get(step, CachesReset(step, prefix_cache=False)), connector=True)
    return list(made.values())


def _number(resource: Mapping[str, Any], key: str, what: str) -> int:
    if not (number := resource.get(key)):
        raise NotDrivable(f"the history cannot be driven again: its recorder does not say {what}")
    return int(number)


def _connector_settings(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded numbers and truth values of the connector's configuration; none if they are damaged. Recorders write no
    texts, and a text could name a module that the connector imports."""
    try:
        settings = json.loads(resource.get(semconv.CONNECTOR_SETTINGS.key) or "{}")
    except ValueError:
        return {}
    if not isinstance(settings, dict):
        return {}
    return {name: value for name, value in settings.items() if isinstance(value, int | float)}


def _hash_size(requests: Mapping[str, RecordedRequest], block_size: int) -> int:
    """The number of tokens per block hash, which is not recorded: the largest that fits the number of recorded hashes."""
    chains = [(len(request.hashes), request) for request in requests.values() if request.hashes]
    sizes = (size for size in range(block_size, 0, -1) if block_size % size == 0)
    return next(size for size in sizes if all(count * size <= each.length + each.max_tokens for count, each in chains))


def _groups(resource: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
    """The declared KV cache groups; none for a single group of full attention. One layer represents all layers of a group,
    since the scheduler counts blocks.

    Raises:
        NotDrivable: a group is of a kind that the simulated model has no layer for.
    """
    declared = groups_of(resource.get(semconv.GROUPS.key))
    if declared == ONE:
        return ()
    for group in declared:
        if group.first_needed(0) is None:
            raise NotDrivable(
                f"the history cannot be driven again: its model has a KV cache group of kind {group.kind}, which is not"
                " simulated"
            )
    return tuple(
        CacheGroup(group.kind, group.block_size, group.window, cache_mode=group.cache_mode) for group in declared
    )


def _settings(resource: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's engine arguments."""
    known = {
        "max_num_batched_tokens": resource.get(semconv.MAX_BATCHED.key),
        "max_num_seqs": resource.get(semconv.MAX_SEQUENCES.key),
        "max_model_len": resource.get(semconv.MAX_LENGTH.key),
        "scheduling_policy": resource.get(semconv.POLICY.key),
        "scheduler_reserve_full_isl": resource.get(semconv.RESERVES.key),
        "enable_prefix_caching": resource.get(semconv.PREFIX_CACHING.key),
    }
    return {name: value for name, value in known.items() if value is not None}
