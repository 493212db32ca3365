from __future__ import annotations

from kvtrail.tracer.events.events import Preempt
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import EngineRule

IN_VAIN = 3
"""Number of consecutive preemptions that free nothing from which on the rule reports them."""


class Preemptions:
    """Consecutive preemptions, with no request scheduled in between."""

    def __init__(self) -> None:
        self.row: list[Preempt] = []

    def _enter_preempt(self, event: Preempt, engine: Engine) -> None:
        self.row = [*self.since_run(engine), event]

    def since_run(self, engine: Engine) -> list[Preempt]:
        """The preemptions since the last step of a request."""
        return [each for each in self.row if each.sequence > engine.ran_number]


class IdlePreemption(EngineRule[Preempt]):
    State = Preemptions

    def judge(self, event: Preempt, engine: Engine) -> Judgement:
        if event.blocks_free is None:
            return None
        before = engine.states[Preemptions].since_run(engine)
        step = [each for each in (*before, event) if each.scheduler_step == event.scheduler_step]
        row = list({each.request: each for each in step}.values())  # each child of a MultiConnector reports every one
        if event.blocks_free >= len(row):
            return OK
        if len(row) < IN_VAIN:
            return None
        return Drift({"free": event.blocks_free, "preempted": len(row)}, row)
