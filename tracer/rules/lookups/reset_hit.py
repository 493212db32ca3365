from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Lookup, StorePlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class ResetHit(EngineRule[Lookup | StorePlan]):
    """The connector still finds chunks after a reset of its cache.

    Invariant: after `reset_cache`, h = 0 until something has been stored again, or e = 0 where the connector hides h; and no
    chunk that is to be stored is there already.

    A reset of vLLM's own prefix cache alone does not reach the connector, and a hit after it is legal. A reset that the
    connector refused changes nothing. One that it answered with nothing, perhaps since it does not implement it, is a
    success to vLLM and its caller. Source: vLLM, `Scheduler.reset_connector_cache`, called when weights were changed;
    the incidents are vLLM #57727 (https://github.com/vllm-project/vllm/issues/57727) and #41956
    (https://github.com/vllm-project/vllm/pull/41956). Needs a connector with recorded stores, and every event of the
    engine since the reset; where h is hidden, all of its events. What another engine hands on (the capability
    `receives_once`) is in no cache.
    """

    id = "reset-hit"
    severity = Severity.WRONG_OUTPUT
    classes = ("C24",)
    hint = (
        "The reset reaches one tier, one rank or one process only, or is not implemented: clear the index, the store behind"
        " it and all caches, or answer False."
    )

    def judge(self, event: Lookup | StorePlan, engine: Engine) -> Judgement:
        reset = engine.resets.get(event.connector_id)
        if reset is None:
            return None
        plans = (plan for (owner, _), plan in engine.jobs.items() if owner == event.connector_id)
        storing = any(type(plan) is StorePlan for plan in plans)  # it may count what is on its way
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
        if event.matched is None and engine.missing is not None:  # an unknown store may be on its way
            return engine.missing
        numbers = {"matched": event.matched, "returned": event.answer, "answered": reset.succeeded}
        return Drift(numbers, [reset, event])

    def template(self, finding: Finding) -> str:
        n = finding.numbers
        answer = "answered that it had" if n["answered"] else "answered nothing, which vLLM takes for success"
        found = "it took {present} tokens for stored already"
        if "present" not in n:
            found = "it offered {returned} tokens" if n["matched"] is None else "it matched {matched} tokens"
        return (
            "At {0} vLLM reset the connector's cache, and the connector "
            f"{answer}. Nothing has been stored since. At {{1}} {found}."
        )
