from __future__ import annotations

from kvtrail.tracer.events.events import Event, Heartbeat, LoadPlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import EngineRule

STUCK_S = 240.0
"""Maximum time of a step in seconds. vLLM itself ends an engine after 300 s (`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`), but only
if it has several workers, and only if these do not answer."""


class InStep:
    """The first of the consecutive latest heartbeats between which requests ran, no step began, and nothing was paused."""

    def __init__(self) -> None:
        self.first: Heartbeat | None = None

    def _enter_heartbeat(self, event: Heartbeat, engine: Engine) -> None:
        if not event.scheduler_running or event.scheduler_paused:
            self.first = None
        elif self.first is None or self.first.scheduler_step != event.scheduler_step:
            self.first = event


class StuckStep(EngineRule[Heartbeat]):
    State = InStep
    needs_history = False

    def judge(self, event: Heartbeat, engine: Engine) -> Judgement:
        if event.scheduler_step is None or event.scheduler_running is None:
            return None
        since = engine.states[InStep].first
        if since is None or since.scheduler_step != event.scheduler_step:
            return OK
        if not event.scheduler_running or event.scheduler_paused:
            return OK
        stuck_s = (engine.time.now_ns - engine.time.of(since)) / 1e9
        if stuck_s < STUCK_S:
            return OK
        loads: list[Event] = [plan for plan in engine.jobs.values() if type(plan) is LoadPlan]
        stores = [plan for plan in engine.jobs.values() if type(plan) is not LoadPlan]
        planned = {plan.request for plan in loads}
        loads += [alloc for request, alloc in engine.loads.items() if request not in planned]
        numbers = {
            "stuck_s": round(stuck_s, 1),
            "steps": event.scheduler_step,
            "running": event.scheduler_running,
            "loads": len(loads),
            "stores": len(stores),
            "kept": len(engine.kept),
        }
        oldest = sorted([*loads, *stores, *engine.kept.values()], key=lambda each: each.sequence)[:1]
        return Drift(numbers, [*oldest, since, event], connector=oldest[0].connector if oldest else None)
