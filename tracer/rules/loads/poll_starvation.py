from __future__ import annotations

from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import EngineRule

IDLE_S = 60.0
"""Seconds that the scheduler may make no step while the connector holds blocks."""


class Polled:
    """The first heartbeat with the current number of scheduling steps."""

    def __init__(self) -> None:
        self.first: Heartbeat | None = None

    def _enter_heartbeat(self, event: Heartbeat, engine: Engine) -> None:
        if self.first is None or self.first.scheduler_step != event.scheduler_step:
            self.first = event


class PollStarvation(EngineRule[Heartbeat]):
    State = Polled

    def judge(self, event: Heartbeat, engine: Engine) -> Judgement:
        held: list[Event] = [*engine.loads.values(), *engine.kept.values()]
        if event.scheduler_step is None or not held:
            return None
        if event.scheduler_paused or engine.clocks.is_paused or engine.clocks.running or event.scheduler_running:
            return OK
        before, oldest = engine.states[Polled].first, min(held, key=lambda each: each.sequence)
        if before is None or before.scheduler_step != event.scheduler_step:
            return OK
        idle_s = (engine.time.now_ns - max(engine.time.of(before), engine.time.of(oldest))) / 1e9
        if idle_s < IDLE_S:
            return OK
        numbers = {"idle_s": round(idle_s, 1), "held": len(held), "steps": event.scheduler_step}
        return Drift(numbers, [oldest, before, event])
