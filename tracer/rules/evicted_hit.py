from __future__ import annotations

from tracer.engine import Engine
from tracer.events import Event, LoadPlan
from tracer.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from tracer.rules import EngineRule
from tracer.semconv import Kind


class EvictedHit(EngineRule):
    """A chunk is loaded that was evicted after the lookup had found it.

    Invariant: the keys of a load are in the store when the load is planned.

    Source: lookup and load are two moments, and nothing may be evicted between them; the incidents are vLLM #42289
    (https://github.com/vllm-project/vllm/pull/42289) and LMCache #1101 (https://github.com/LMCache/LMCache/pull/1101).
    Needs a connector that names its keys and whose store nobody else writes (OffloadConnector), at level `detailed`, and
    every event of the engine since its start.
    """

    id = "evicted-hit"
    severity = Severity.WRONG_OUTPUT
    classes = ("C7",)
    kinds = frozenset({Kind.LOAD_PLAN})
    hint = "Pin at the lookup what the load will need, or look again when blocks have been allocated."

    def judge(self, event: Event, engine: Engine) -> Judgement:
        assert isinstance(event, LoadPlan)
        if not event.chunk_keys:
            return None
        if not engine.complete or event.connector_id in engine.partial:
            return Verdict.UNKNOWN
        missing = engine.holds(event.connector_id, event.chunk_keys)
        if not missing:
            return Verdict.OK
        return Drift({"key": missing[0], "missing": len(missing), "count": event.count}, [event])

    def explain(self, finding: Finding) -> str:
        (plan,) = finding.witness
        n = finding.numbers
        return (
            f"At {plan.label} ({clock(plan.at_ns)}) the connector plans to load {n['count']} tokens from a store that does"
            f" not hold {n['missing']} of the chunks any more, the first with key {n['key']}."
        )
