"""store-under-load: blocks are stored while a load writes them."""

from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, LoadPlan, StorePlan
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, Groups


class StoreUnderLoad(EngineRule[StorePlan]):
    """The connector stores blocks into which a load is under way.

    Invariant: no store is planned from a block over which a load is open, whichever child of a MultiConnector loads.

    Stores of the request's other blocks are legal. Source: vLLM, `MultiConnector.update_state_after_alloc` hands the blocks
    to all children, also while one of them loads; the incident is vLLM #35092
    (https://github.com/vllm-project/vllm/pull/35092). Needs block ids (level `detailed`), a probe that reads plans, and
    every event of the engine since the load began.
    """

    id = "store-under-load"
    only_with = "blocks_ids"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C16", "C19", "C22")
    hint = (
        "The child that was not chosen takes the blocks for computed. Store what steps have computed, not what was"
        " allocated."
    )
    explanation = (
        "At {0:epoch} a load into block {block} began. At {1:epoch}, before it has ended, the connector stores {count}"
        " tokens from {open} such blocks: what it stores is not there yet."
    )

    def judge(self, event: StorePlan, engine: Engine) -> Judgement:
        if not event.blocks_ids or event.chunk_present:
            return None
        loads: dict[int, Alloc | LoadPlan] = {}
        if engine.transfers:
            loads = {
                block: load
                for block in event.blocks_ids
                for load in engine.transfers.get(block, {}).values()
                if type(load) is Alloc or type(load) is LoadPlan
            }
        if not loads:
            return OK if event.request in engine.met else engine.missing or OK
        block = next(iter(loads))
        return Drift({"block": block, "open": len(loads), "count": event.count}, [loads[block], event])
