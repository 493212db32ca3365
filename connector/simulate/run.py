"""Plays a scenario on vLLM's real scheduler, and records and judges it in this process."""

from __future__ import annotations

import copy
import gc
import os
import secrets
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from kvtrail.connector import registration
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.judges import capacity
from kvtrail.connector.simulate.judges.failure import Failure
from kvtrail.connector.simulate.judges.observer import Observer
from kvtrail.connector.simulate.scenario import Abort, Arrival, CachesReset, Scenario
from kvtrail.connector.simulate.workers.slow_threads import BESIDE, SlowThreads, slow_threads
from kvtrail.connector.tracing import traced
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event, Lookup
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ledger.account import SCHEDULER
from kvtrail.tracer.model.findings import Finding, Verdict, by_weight
from kvtrail.tracer.rules.rule import DeadlineRule
from kvtrail.tracer.rules.rule_set import all_rules

MUCH_LATER_S = 60 + int(max(rule.after_s for rule in all_rules() if isinstance(rule, DeadlineRule)))
"""Seconds after the last step of a scenario at which it is judged: everything that is still pending then is overdue."""
FLUSH_STEPS = 200
"""Steps after which the recorder is flushed, so that its ring does not overflow."""
DRAIN_STEPS = 12
"""Number of idle steps at the end, in addition to those that open transfers may take."""
STALLED_STEPS = 300
"""Number of steps in which nothing is scheduled, after which waiting requests count as never ending."""


class Unbuildable(ValueError):
    """vLLM or the connector cannot be built; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """The result of a scenario.

    Attributes:
        exporters: the exporter of each recorder, for its spans.
        events: all events, in the order of their recorders.
        findings: the findings, the worst first, then by time.
        checks: how often each rule gave each verdict on the connector under test.
        observations: failures that no event shows; only if the run was observed.
        error: the error that ended the engine, `TypeName: text`; None if it lived.
        traceback: the traceback of this error, innermost call last.
        steps: number of scheduling steps.
        unfinished: requests that had not ended when the run did, and what each of them waits for, by id.
        lookups: the lookups of the connector under test.
        loads_read: number of loads with compared bytes, where the connector's own workers ran.
        loads_copied: whether any load had written anything.
        blocks_compared: number of blocks with bytes that were compared before a step that reads them.
        capacity_compared: whether the capacity of a full store was compared with that of a new one.
        asked_of_failed: number of lookups of prompts that a step had computed, in part, from a failed load.
        kv_events: number of blocks that KV cache events reported as stored, and as removed, and of lookups that found such.
        unprobed: why the connector's probe saw nothing: it has none, or it failed; None if it worked.
        tested: the id of the connector under test among the children of a MultiConnector; None for all of them.
        ranks: number of tensor-parallel ranks of the engine; with two engines, that of the larger one.
    """

    exporters: Sequence[in_memory.InMemoryExporter]
    events: Sequence[Event]
    findings: Sequence[Finding]
    checks: Mapping[tuple[str, Verdict], int]
    observations: Sequence[Failure]
    error: str | None
    traceback: str
    steps: int
    unfinished: Mapping[str, str]
    lookups: Sequence[Lookup]
    loads_read: int
    loads_copied: bool
    blocks_compared: int
    unprobed: str | None
    tested: str | None = None
    ranks: int = 1
    capacity_compared: bool = False
    asked_of_failed: int = 0
    kv_events: tuple[int, int, int] = (0, 0, 0)

    @cached_property
    def spans(self) -> list[Span]:
        """The events as spans, to write a trace."""
        return [span for each in self.exporters for span in each.spans()]


@contextmanager
def _leaving_nothing() -> Iterator[None]:
    """Collect the reference cycles that a run leaves: engines of 20 MiB each. They have too few objects to trigger Python's
    collector. Older objects are not scanned, so this takes two milliseconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


@_leaving_nothing()
def play(
    scenario: Scenario,
    connector: Mapping[str, Any] | None,
    *,
    own_workers: bool = False,
    child: int = 0,
    observed: bool = False,
    at_rest: bool = True,
    on_step: Callable[[int], None] = lambda steps: None,
) -> Played:
    """Run a scenario with a connector, and judge what it records.

    Args:
        connector: vLLM's `kv_transfer_config`; without one nothing is recorded.
        own_workers: run the connector's own worker side on KV caches in memory, instead of a fake.
        child: the connector under test: 0 for the whole, n for the n-th child of a MultiConnector.
        observed: also judge by the tokens that were computed.
        at_rest: if observed, also judge by what is left at the end; this takes some more requests.
        on_step: called with the number of steps so far.

    Raises:
        Unbuildable: vLLM refuses the scenario's settings or the connector.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        in_memory.exporters() as exporters,
        slow_threads(scenario.workers) if own_workers else nullcontext() as threads,
    ):

        def built() -> BareScheduler:
            stage = _build(Path(folder), scenario, connector, own_workers=own_workers, copies=observed)
            if threads is not None:
                stage.observers.append(lambda output, report: threads.step())
            return stage

        stage = built()
        observer, tested, error, trace = None, None, None, ""
        steps_when_new = 0

        def when_new(at_once: bool) -> capacity.Capacity:
            nonlocal steps_when_new
            with in_memory.exporters():
                new = built()
                try:
                    return capacity.measured_when_new(
                        new, partial(run_more, new, scenario, threads=threads), at_once=at_once
                    )
                finally:
                    new.close()
                    steps_when_new += new.steps

        if stage.connectors:
            tested = getattr(stage.connectors[child], "_kvtrail", None)
            if observed and tested is not None:
                observer = Observer(stage, stage.connectors[child])
        try:
            drive(scenario, stage, on_step)
            if at_rest and observer is not None and not stage.scheduler.has_unfinished_requests():
                observer.rest(
                    partial(run_more, stage, scenario, threads=threads),
                    when_new if capacity.can_be_measured(scenario) else None,
                )
        except Exception as died:  # an engine may die of anything
            error, trace = f"{type(died).__name__}: {died}", where(died)
        in_memory.flush()
        for each in exporters:
            each.seal(later_s=MUCH_LATER_S if error is None else 0)
        unfinished = {r: _state(stage, request) for r, request in stage.scheduler.requests.items()}
        model = None if stage.worker is None else stage.worker.model
        unprobed = None if tested is None else tested.unprobed
        with suppress(Exception):  # a dead engine may not end well either
            stage.close()
    events = [event for each in exporters for event in each.events()]
    schedulers = list(dict.fromkeys(event.connector_id for event in events if event.role == SCHEDULER))
    alone = schedulers[child - 1] if 0 < child <= len(schedulers) else None
    detector, checks = judged_alone(events, alone)
    heard = None if observer is None else observer.kv_events
    found = [finding for held in detector.findings.values() for finding in held.values()]
    return Played(
        exporters=exporters,
        events=events,
        findings=by_weight(found),
        checks=checks,
        observations=[] if observer is None else [*observer.seen.values()],
        error=error,
        traceback=trace,
        steps=stage.steps + steps_when_new,
        unfinished={r: state for r, state in unfinished.items() if state},
        lookups=[e for e in events if isinstance(e, Lookup) and alone in (None, e.connector_id)],
        loads_read=0 if model is None else model.loaded,
        loads_copied=model is not None and model.copied,
        blocks_compared=0 if model is None else model.compared,
        unprobed=unprobed,
        tested=alone,
        ranks=scenario.settings.get("tensor_parallel_size", 1),
        capacity_compared=observer is not None and observer.capacity_compared,
        asked_of_failed=0 if observer is None else observer.asked_of_failed,
        kv_events=(0, 0, 0) if heard is None else (heard.stored, heard.removed, heard.found),
    )


def run_more(
    stage: BareScheduler, scenario: Scenario, arrivals: Sequence[Arrival], *, threads: SlowThreads | None = None
) -> None:
    """Run some more requests, until all of their transfers have ended, also those in slow `threads`."""
    more = replace(scenario, arrivals=tuple(arrivals), aborts=(), resets=(), most_steps=stage.steps + 2000)
    drive(more, stage)
    for _ in range(BESIDE * scenario.workers.latest_steps):
        if threads is None or not threads.has_waiting:
            break
        stage.step()
    for _ in range(DRAIN_STEPS + 2 * scenario.workers.latest_steps):
        stage.step()


def drive(scenario: Scenario, stage: BareScheduler, on_step: Callable[[int], None] = lambda steps: None) -> None:
    """Run a scenario step by step until all requests and transfers have ended."""
    arrivals = sorted(scenario.arrivals, key=lambda each: each.at_step)
    aborts = sorted(scenario.aborts, key=lambda each: each.at_step)
    resets = sorted(scenario.resets, key=lambda each: each.at_step)
    live: dict[str, int] = {}
    """The step in which each request was last known to vLLM."""
    quiet = 2 + 2 * scenario.workers.latest_steps
    idle = stalled = 0
    drained = DRAIN_STEPS + 2 * scenario.workers.latest_steps  # a store, and then the report that blocks are free
    while stage.steps < scenario.most_steps and idle < drained and stalled < STALLED_STEPS:
        live.update(dict.fromkeys(stage.scheduler.requests, stage.steps))
        taken = {name for name, step in live.items() if stage.steps - step <= quiet}
        was_reset = False
        for reset in [each for each in resets if each.at_step <= stage.steps]:
            # one reset is enough for a state
            if not (was_reset and reset.when) and _happens(reset, stage, taken):
                was_reset = True
                resets.remove(reset)
        for each in [each for each in arrivals if each.at_step <= stage.steps]:
            if each.id not in taken:  # otherwise its id or one of its transfers is in use, and it arrives later
                arrivals.remove(each)
                taken.add(each.id)
                live[each.id] = stage.steps
                stage.arrive(each)
        aborts = [each for each in aborts if each.at_step > stage.steps or not _happens(each, stage, taken)]
        ran = stage.step()
        later: list[Any] = [*aborts, *resets, *arrivals]
        coming = any(each.at_step >= stage.steps for each in later)
        stalled = 0 if ran or coming else stalled + 1
        on_step(stage.steps)
        if stage.steps % FLUSH_STEPS == 0:
            in_memory.flush()
        busy = arrivals or stage.scheduler.has_unfinished_requests()
        idle = 0 if busy else idle + 1
        if not busy and not stage.scheduler.requests and idle > scenario.workers.latest_steps:
            return


def _happens(each: Abort | CachesReset, stage: BareScheduler, ids: Iterable[str]) -> bool:
    """Abort or reset, if the time has come; returns whether it has."""
    asked = (each.id,) if isinstance(each, Abort) else ids
    if each.when is not None and not any(stage.is_in(request_id, each.when) for request_id in asked):
        return False
    if isinstance(each, Abort):
        if stage.others_share_failed(each.id):
            return False
        stage.abort(each.id)
    elif each.running and each.prefix_cache and not _frees_all(stage.scheduler):
        return False
    elif each.prefix_cache:
        stage.scheduler.reset_prefix_cache(reset_running_requests=each.running, reset_connector=each.connector)
    else:
        stage.scheduler.reset_connector_cache()
    return True


def _frees_all(scheduler: Any) -> bool:
    """Whether a preemption of all running requests would free all blocks. Otherwise a load between steps or a store holds
    blocks, and vLLM raises when its cache is reset while requests run. Leaked blocks are found at the end of a run."""
    cache = scheduler.kv_cache_manager
    tables = (cache.get_block_ids(request.request_id) for request in scheduler.running)
    held = Counter(block for groups in tables for table in groups for block in table)
    return all(block.is_null or block.ref_cnt <= held[block.block_id] for block in cache.block_pool.blocks)


def where(died: BaseException) -> str:
    """The traceback of an error, without the calls of the simulator and of the tracing around it. Its file names are relative
    to the import path, so that it is the same on each machine."""
    frames = traceback.extract_tb(died.__traceback__)
    ours = tuple(str(Path(file).parent) for file in (__file__, traced.__file__))
    shown = [frame for frame in frames if not frame.filename.startswith(ours)] or [*frames]
    for frame in shown:
        frame.filename = _as_imported(frame.filename)
    return "".join([*traceback.format_list(shown), *traceback.format_exception_only(died)]).rstrip()


def _as_imported(file: str) -> str:
    """A file's name, relative to the folder on the import path that contains it."""
    folders = [folder for folder in map(os.path.abspath, sys.path) if file.startswith(folder + os.sep)]
    return os.path.relpath(file, max(folders, key=len)) if folders else file


def _state(stage: BareScheduler, request: Any) -> str:
    """The state of a request that has not ended, in words; empty if it has ended."""
    if request.is_finished():
        return ""
    held = sum(map(len, stage.scheduler.kv_cache_manager.get_block_ids(request.request_id)))
    text = f"{request.status.name}, {request.num_computed_tokens} of {request.num_tokens} tokens computed, {held} blocks held"
    calls = stage.calls
    if answer := calls.answers.get(request.request_id):
        tokens, how = answer
        said = "'ask me later'" if tokens is None else f"{tokens} tokens{', asynchronously' if how else ''}"
        text += f"; its last lookup was answered {said}"
    if load := calls.loads.get(request.request_id):
        text += f"; its last load was of tokens {load.start} to {load.end}"
    times = request.num_preemptions
    return f"{text}; preempted {'once' if times == 1 else f'{times} times'}" if times else text


def judged_alone(
    events: Iterable[Event], connector_id: str | None = None
) -> tuple[Detector, Counter[tuple[str, Verdict]]]:
    """The detector after a whole history, and how often each rule gave each verdict on one connector; None for all."""
    detector = Detector()
    others: Counter[tuple[str, Verdict]] = Counter()
    for is_other, some in groupby(events, lambda event: connector_id not in (None, "", event.connector_id)):
        before = Counter(detector.verdicts) if is_other else None
        detector.feed(some)
        if before is not None:
            others += Counter(detector.verdicts) - before
    detector.settle()
    detector.tick()
    return detector, Counter(detector.verdicts) - others


def _build(
    folder: Path,
    scenario: Scenario,
    connector: Mapping[str, Any] | None,
    *,
    own_workers: bool,
    copies: bool,
) -> BareScheduler:
    try:
        if connector is not None and connector.get("kv_connector_module_path") == "kvtrail.connector":
            registration.resolve(connector["kv_connector"])  # it says more about a wrong name than vLLM does
        return BareScheduler(
            folder,
            None if connector is None else of_its_own(connector, scenario),
            own_workers=own_workers,
            copies=copies,
            num_blocks=scenario.num_blocks,
            block_size=scenario.block_size,
            seed=scenario.seed,
            drafts=scenario.drafts,
            groups=scenario.groups,
            workers=scenario.workers,
            **scenario.settings,
        )
    except ImportError as missing:
        text = f"the connector cannot be made here: {missing}"
        if missing.name is not None:  # otherwise the connector raised it, with a text of its own
            text += f". Install {missing.name.partition('.')[0]}, or put the folder that has it on PYTHONPATH"
        raise Unbuildable(text) from missing
    except Exception as refused:  # a connector may refuse in any way
        raise Unbuildable(f"{type(refused).__name__}: {refused}") from refused


def of_its_own(connector: Mapping[str, Any], scenario: Scenario | None = None) -> dict[str, Any]:
    """The configuration for one run: with a unique engine id, and by default at level `detailed`. Where loads fail in the
    scenario, fingerprints are off by default, since the simulator overwrites blocks without a call."""
    own = copy.deepcopy(dict(connector))
    fails = scenario is not None and scenario.workers.load_failures > 0
    defaults = {"level": "detailed", **({"fingerprints": "off"} if fails else {})}
    if scenario is not None and not scenario.recompute:
        own["kv_load_failure_policy"] = "fail"
    extra = own.setdefault("kv_connector_extra_config", {})
    extra["kvtrail"] = defaults | extra.get("kvtrail", {})
    for child in extra.get("connectors", ()):
        below = child.setdefault("kv_connector_extra_config", {})
        below["kvtrail"] = defaults | below.get("kvtrail", {})
    return {"engine_id": f"bare-{secrets.token_hex(4)}", **own}
