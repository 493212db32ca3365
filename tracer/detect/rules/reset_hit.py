from __future__ import annotations

from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.detect.rules import EngineRule
from kvtrail.tracer.model.events import Lookup, StorePlan
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown


class ResetHit(EngineRule[Lookup | StorePlan]):
    """The connector finds what it was told to forget.

    Invariant: after `reset_cache`, h = 0 until something has been stored again, and no chunk that is to be stored is there
    already.

    A reset of vLLM's own prefix cache alone does not reach the connector, and a hit after it is legal. A reset that the
    connector refused changes nothing. One that it answered with nothing, perhaps since it does not implement it, is a
    success to vLLM and to whoever asked. Source: vLLM, `Scheduler.reset_connector_cache`, called when weights were changed;
    the incident is vLLM #57727 (https://github.com/vllm-project/vllm/issues/57727). Needs a connector that shows what it
    matched or plans, and whose stores are recorded, and every event of the engine since the reset.
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
        if isinstance(event, StorePlan):
            storing = any(isinstance(job, StorePlan) for job in engine.jobs.values())
            if not event.chunk_present or storing:  # it may count what is on its way
                return None
            return Drift({"present": event.count, "answered": reset.succeeded}, [reset, event])
        if event.matched is None:
            return None
        if event.matched == 0:
            return OK
        if event.connector_id not in engine.storing:
            return Unknown.PROBE
        numbers = {"matched": event.matched, "returned": event.answer, "answered": reset.succeeded}
        return Drift(numbers, [reset, event])

    def template(self, finding: Finding) -> str:
        n = finding.numbers
        said = "said that it had" if n["answered"] else "answered nothing, which vLLM takes for success"
        found = "it matched {matched} tokens" if "matched" in n else "it took {present} tokens for stored already"
        return (
            "At {0} the connector was told to forget everything, and "
            f"{said}. Nothing has been stored since. At {{1}} {found}."
        )
