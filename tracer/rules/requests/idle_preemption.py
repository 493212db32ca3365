from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Preempt, Schedule
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import EngineRule

IN_VAIN = 3
"""This many consecutive preemptions that free nothing are no accident."""


class Preemptions:
    """Consecutive preemptions, with no request scheduled in between."""

    def __init__(self) -> None:
        self.row: list[Preempt] = []

    def _enter_preempt(self, event: Preempt, engine: Engine) -> None:
        self.row.append(event)

    def _enter_schedule(self, event: Schedule, engine: Engine) -> None:
        self.row.clear()


class IdlePreemption(EngineRule[Preempt]):
    """Requests are preempted one after the other and no block becomes free.

    Invariant: after k >= 3 preemptions in one step, at least k blocks are free: each of the requests held at least one that
    it shared with nobody.

    A single preemption may free nothing at once: a connector may fence its blocks until a store has ended. Source: vLLM,
    `Scheduler.schedule` preempts until an allocation succeeds; the incident is vLLM #49674
    (https://github.com/vllm-project/vllm/issues/49674). Needs the pool's free blocks and every event of the engine between
    the preemptions.
    """

    id = "idle-preemption"
    only_with = "blocks_free"
    severity = Severity.WASTED_WORK
    classes = ("C15",)
    hint = "The freed blocks are fenced for stores that are under way. Wait for them, rather than preempt the next."
    explanation = (
        "Between {first} and {last} {preempted} requests were preempted in a row, and the pool still has {free} free blocks:"
        " their work is lost for nothing."
    )

    State = Preemptions

    def judge(self, event: Preempt, engine: Engine) -> Judgement:
        if event.blocks_free is None:
            return None
        step = [
            each for each in (*engine.states[Preemptions].row, event) if each.scheduler_step == event.scheduler_step
        ]
        row = list({each.request: each for each in step}.values())  # each child of a MultiConnector reports every one
        if event.blocks_free >= len(row):
            return OK
        if len(row) < IN_VAIN:
            return None
        return Drift({"free": event.blocks_free, "preempted": len(row)}, row)

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"first": finding.witness[0], "last": finding.witness[-1]}
