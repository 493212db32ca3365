from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Lookup, Reset, Store, StorePlan, TransferEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule


class Resets:
    """The last reset of each connector that has stored nothing since."""

    def __init__(self) -> None:
        self.of: dict[str, Reset] = {}

    def _enter_reset(self, event: Reset, engine: Engine) -> None:
        if event.succeeded is not False:
            self.of[event.connector_id] = event

    def _enter_store(self, event: Store, engine: Engine) -> None:
        self.of.pop(event.connector_id, None)

    def _enter_store_plan(self, event: StorePlan, engine: Engine) -> None:
        if self.of and event.transfer_id is None and not event.chunk_present:
            self.of.pop(event.connector_id, None)

    def _enter_transfer_end(self, event: TransferEnd, engine: Engine) -> None:
        plan = engine.jobs.get(event.job)
        has_copied = isinstance(plan, StorePlan) and not (plan.chunk_present or event.failed)
        if plan is None or has_copied:  # an unknown plan may have been a store
            self.of.pop(event.connector_id, None)


class ResetHit(EngineRule[Lookup | StorePlan]):
    State = Resets

    def judge(self, event: Lookup | StorePlan, engine: Engine) -> Judgement:
        reset = engine.states[Resets].of.get(event.connector_id)
        if reset is None:
            return None
        plans = (plan for (owner, _), plan in engine.jobs.items() if owner == event.connector_id)
        storing = any(type(plan) is StorePlan for plan in plans)  # the connector may count open stores
        if type(event) is StorePlan:
            if not event.chunk_present or storing:
                return None
            return Drift({"present": event.count, "answered": reset.succeeded}, [reset, event])
        found = event.matched
        if found is None:
            if storing or event.has(Capability.RECEIVES_ONCE):
                return None
            found = event.answer
        if not found:
            return None if found is None else OK
        if event.connector_id not in engine.storing:
            return Unknown.PROBE
        if event.matched is None and engine.missing is not None:  # an unknown store may be open
            return engine.missing
        numbers = {"matched": event.matched, "returned": event.answer, "answered": reset.succeeded}
        return Drift(numbers, [reset, event])

    def values(self, finding: Finding) -> dict[str, Any]:
        nothing = "answered nothing, which vLLM takes for success"
        return {"answer": "answered that it had" if finding.numbers["answered"] else nothing}
