from __future__ import annotations

from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.detect.rules import EngineRule
from kvtrail.tracer.model.events import Lookup
from kvtrail.tracer.model.findings import Drift, Judgement, Severity, Unknown, Verdict


class ResetHit(EngineRule[Lookup]):
    """The connector finds what it was told to forget.

    Invariant: after `reset_cache`, h = 0 until something has been stored again.

    A reset of vLLM's own prefix cache alone does not reach the connector, and a hit after it is legal. A reset that the
    connector refused, or does not implement, changes nothing. Source: vLLM, `Scheduler.reset_connector_cache`, called
    when weights were changed; the incident is vLLM #57727 (https://github.com/vllm-project/vllm/issues/57727). Needs a
    connector that shows what it matched and reports its stores, and every event of the engine since the reset.
    """

    id = "reset-hit"
    severity = Severity.WRONG_OUTPUT
    classes = ("C24",)
    hint = (
        "The reset reaches one tier, one rank or one process only: clear the index, the store behind it and all caches."
    )
    explanation = (
        "At {0} the connector was told to forget everything, and said that it had. Nothing has been stored since. At {1} it"
        " matched {matched} tokens."
    )

    def judge(self, event: Lookup, engine: Engine) -> Judgement:
        reset = engine.reset
        if reset is None or not reset.succeeded or event.matched is None or event.connector_id != reset.connector_id:
            return None
        if engine.keys(event.connector_id).unnamed:
            return Unknown.UNNAMED
        if event.matched == 0:
            return Verdict.OK
        return Drift({"matched": event.matched, "returned": event.answer}, [reset, event])
