"""store-failed-load: what a failed load has left in blocks is stored."""

from __future__ import annotations

from kvtrail.tracer.events.events import StorePlan
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, Groups


class StoreFailedLoad(EngineRule[StorePlan]):
    """The connector stores blocks that failed to load.

    Invariant: after a load error over block b nothing is stored from b until a step has computed it again.

    Source: vLLM, `Scheduler._update_requests_with_invalid_blocks` has the blocks computed again, and does not tell connectors
    what they hold until then; the incident is vllm-ascend #16876 (https://github.com/vllm-project/vllm-ascend/pull/16876).
    Needs block ids (level `detailed`), a probe that reads plans, and every event of the engine since the error.
    """

    id = "store-failed-load"
    only_with = "blocks_ids"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C8", "C22")
    hint = "The store is planned from what was to be loaded. Drop a request's pending stores when its load fails."
    explanation = (
        "At {0} the load of block {block} was reported as failed. At {1:epoch} the connector stores {count} tokens from"
        " {failed} such blocks, and no step has computed them since: a load of the chunk gets what was left in them."
    )

    def judge(self, event: StorePlan, engine: Engine) -> Judgement:
        if not engine.invalid or not event.blocks_ids or event.chunk_present:
            return None
        begun = engine.recomputing
        failed = [b for b in event.blocks_ids if b in engine.invalid and event.request not in begun.get(b, ())]
        if not failed:
            return OK
        numbers = {"block": failed[0], "failed": len(failed), "count": event.count}
        return Drift(numbers, [engine.invalid[failed[0]], event])
