"""Plays a scenario on vLLM's real scheduler, and records and judges it in this process."""

from __future__ import annotations

import copy
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kvtrail.connector import registration
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.scenario import Scenario, tokens
from kvtrail.connector.simulate.stages import BareScheduler, Stage, WholeEngine
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding, Verdict, by_weight
from kvtrail.tracer.model.spans import Span

MUCH_LATER_S = 3600
"""Seconds after the last step of a scenario at which it is judged: what is still awaited then is overdue."""
FLUSH_STEPS = 200
"""Steps after which the recorder is flushed, so that its ring does not overflow."""
DRAIN_STEPS = 12
"""Idle steps at the end, beyond those that transfers in flight may take."""
STALLED_STEPS = 300
"""After so many steps in which nothing was scheduled although requests wait, they count as never ending."""


class Unbuildable(ValueError):
    """vLLM or the connector cannot be built; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """The result of a scenario.

    Attributes:
        exporters: of each recorder, for its spans.
        events: all events, in the order of their recorders.
        findings: the worst first, then by time.
        checks: how often each rule gave each verdict.
        error: what the engine died of, `TypeName: text`; None if it lived.
        steps: scheduling steps.
        unfinished: requests that had not ended when the run did, although the engine lived.
    """

    exporters: Sequence[in_memory.InMemoryExporter]
    events: Sequence[Event]
    findings: Sequence[Finding]
    checks: Mapping[tuple[str, Verdict], int]
    error: str | None
    steps: int
    unfinished: Sequence[str]

    @cached_property
    def spans(self) -> list[Span]:
        """The events as spans, to write a trace."""
        return [span for each in self.exporters for span in each.spans()]


def play(
    scenario: Scenario,
    connector: Mapping[str, Any] | None,
    *,
    whole_engine: bool = False,
    on_step: Callable[[int], None] = lambda steps: None,
) -> Played:
    """Run a scenario with a connector, and judge what it records.

    Args:
        connector: vLLM's `kv_transfer_config`; without one nothing is recorded.
        whole_engine: run vLLM's CPU engine, with a model and the connector's workers, instead of the bare scheduler.
        on_step: called with the number of steps so far.

    Raises:
        Unbuildable: vLLM refuses the scenario's settings or the connector.
    """
    with tempfile.TemporaryDirectory() as folder, in_memory.exporters() as exporters:
        stage = _build(Path(folder), scenario, connector, WholeEngine if whole_engine else BareScheduler)
        error = None
        try:
            drive(scenario, stage, on_step)
        except Exception as died:  # an engine may die of anything
            error = f"{type(died).__name__}: {died}"
        in_memory.flush()
        for each in exporters:
            each.seal(later_s=MUCH_LATER_S)
        unfinished = [r for r, request in stage.scheduler.requests.items() if not request.is_finished()]
        with suppress(Exception):  # a dead engine may not end well either
            stage.close()
    events = [event for each in exporters for event in each.events()]
    if whole_engine:
        for event in events:
            event.request = event.external  # the engine appends a suffix to the scenario's ids
    detector = judged(events)
    found = [finding for held in detector.findings.values() for finding in held.values()]
    return Played(
        exporters=exporters,
        events=events,
        findings=by_weight(found),
        checks=Counter(detector.verdicts),
        error=error,
        steps=stage.steps,
        unfinished=unfinished,
    )


def drive(scenario: Scenario, stage: Stage, on_step: Callable[[int], None] = lambda steps: None) -> None:
    """Run a scenario step by step until nothing is left to do."""
    arrivals = sorted(scenario.arrivals, key=lambda a: a.at_step)[::-1]  # the next one last
    aborts = sorted(scenario.aborts, key=lambda a: a.at_step)[::-1]
    resets = sorted(scenario.resets, key=lambda r: r.at_step)[::-1]
    idle = stalled = 0
    drained = DRAIN_STEPS + 2 * scenario.workers.latest_steps  # a store, and then the report that blocks are free
    while stage.steps < scenario.most_steps and idle < drained and stalled < STALLED_STEPS:
        while resets and resets[-1].at_step <= stage.steps:
            reset, scheduler = resets.pop(), stage.scheduler
            if reset.prefix_cache:
                scheduler.reset_prefix_cache(reset_running_requests=reset.running, reset_connector=reset.connector)
            else:
                scheduler.reset_connector_cache()
        while arrivals and arrivals[-1].at_step <= stage.steps:
            each = arrivals.pop()
            prompt, output = tokens(each.prompt), tokens(each.output)
            stage.add(each.id, prompt, each.max_tokens, priority=each.priority, output=output)
        while aborts and aborts[-1].at_step <= stage.steps:
            stage.abort(aborts.pop().id)
        ran = stage.step()
        stalled = 0 if ran or arrivals or aborts or resets else stalled + 1
        on_step(stage.steps)
        if stage.steps % FLUSH_STEPS == 0:
            in_memory.flush()
        busy = arrivals or stage.scheduler.has_unfinished_requests()
        idle = 0 if busy else idle + 1
        if not busy and not stage.scheduler.requests and idle > scenario.workers.latest_steps:
            return


def judged(events: Iterable[Event]) -> Detector:
    """The detector after a whole history."""
    detector = Detector()
    detector.feed(events)
    detector.settle()
    detector.tick()
    return detector


def _build(
    folder: Path,
    scenario: Scenario,
    connector: Mapping[str, Any] | None,
    stage: type[BareScheduler] | type[WholeEngine],
) -> Stage:
    try:
        if connector is not None and connector.get("kv_connector_module_path") == "kvtrail.connector":
            registration.resolve(connector["kv_connector"])  # it says more about a wrong name than vLLM does
        return stage(
            folder,
            None if connector is None else _of_its_own(connector),
            num_blocks=scenario.num_blocks,
            block_size=scenario.block_size,
            seed=scenario.seed,
            drafts=scenario.drafts,
            workers=scenario.workers,
            **scenario.settings,
        )
    except Exception as refused:  # a connector may refuse in any way
        raise Unbuildable(f"{type(refused).__name__}: {refused}") from refused


def _of_its_own(connector: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for one run: with a unique engine id, at level `detailed` unless it says otherwise."""
    own = copy.deepcopy(dict(connector))
    extra = own.setdefault("kv_connector_extra_config", {})
    extra["kvtrail"] = {"level": "detailed"} | extra.get("kvtrail", {})
    for child in extra.get("connectors", ()):
        below = child.setdefault("kv_connector_extra_config", {})
        below["kvtrail"] = {"level": "detailed"} | below.get("kvtrail", {})
    return {"engine_id": f"bare-{secrets.token_hex(4)}", **own}
