"""poll-starvation: the connector is not polled for finished transfers."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Event, Heartbeat, RequestEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, KnownBy

IDLE_S = 60.0
"""How long the scheduler may make no step while the connector holds blocks."""


class PollStarvation(EngineRule[Heartbeat]):
    """The scheduler makes no steps while the connector holds blocks for a transfer.

    Invariant: while an asynchronous load is open, or the blocks of an ended request are kept, the scheduler makes a step at
    least every 60 seconds.

    Ends of transfers are reported in steps only, so blocks stay held until the next request comes. A paused scheduler makes
    none on purpose, and while a request runs, the engine is in the middle of a long step. Source: vLLM,
    `EngineCore.step` is where `get_finished` is asked; the incident is vLLM #46502
    (https://github.com/vllm-project/vllm/issues/46502). Needs heartbeats that report the scheduler's steps, and every
    event of the engine.
    """

    id = "poll-starvation"
    severity = Severity.LEAK
    known_by = KnownBy.DEADLINE
    classes = ("C13", "N5")
    hint = (
        "The engine's loop stops when no request runs, though transfers are open: its liveness must count them, too. Until"
        " then a small request from time to time makes it go on."
    )

    def judge(self, event: Heartbeat, engine: Engine) -> Judgement:
        held: list[Event] = [*engine.loads.values(), *engine.kept.values()]
        if event.scheduler_step is None or not held:
            return None
        if event.scheduler_paused or engine.clocks.is_paused or engine.clocks.running or event.scheduler_running:
            return OK
        before, oldest = engine.polled, min(held, key=lambda each: each.sequence)
        if before is None or before.scheduler_step != event.scheduler_step:
            return OK
        idle_s = (engine.time.now_ns - max(engine.time.of(before), engine.time.of(oldest))) / 1e9
        if idle_s < IDLE_S:
            return OK
        numbers = {"idle_s": round(idle_s, 1), "held": len(held), "steps": event.scheduler_step}
        return Drift(numbers, [oldest, before, event])

    def explain(self, finding: Finding) -> str:
        first, *_, last = finding.witness
        n: dict[str, Any] = finding.numbers
        what = "blocks of an ended request were kept" if first.kind == RequestEnd.kind else "a load began"
        others = f" {n['held']} requests' blocks are held in all." if n["held"] > 1 else ""
        return (
            f"At {first} {what}. At {last} the scheduler has made no step for {n['idle_s']} seconds, so the end of"
            f" the transfer cannot be reported.{others}"
        )
