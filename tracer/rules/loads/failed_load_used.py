from __future__ import annotations

from kvtrail.tracer.events.events import LoadPlan, Lookup, Schedule, StorePlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule


class FailedLoadUsed(EngineRule[Schedule | StorePlan | Lookup | LoadPlan]):
    id = "failed-load-used"

    def judge(self, event: Schedule | StorePlan | Lookup | LoadPlan, engine: Engine) -> Judgement:
        if isinstance(event, Schedule):
            return _judge_step(event, engine)
        return _judge_store(event, engine) if isinstance(event, StorePlan) else _judge_hit(event, engine)


def _judge_step(event: Schedule, engine: Engine) -> Judgement:
    if not engine.invalid:
        return None
    table = engine.tables.get(event.request or "")
    if table is None or not event.block_size:
        return engine.missing or Unknown.LEVEL
    for number, (size, ids) in enumerate(table.sized()):
        needed = table.needed_from(number, event.computed)
        for position, block in enumerate(ids[needed : -(-event.computed // size)], needed):
            if block not in engine.invalid or event.request in engine.recomputing.get(block, ()):
                continue
            if not _may_be_computed_beside(event, block, engine):
                numbers = {
                    "where": "run on",
                    "block": block,
                    "first_invalid": position * size,
                    "begins": event.computed,
                }
                return Drift(numbers, [engine.invalid[block], event])
    return OK


def _may_be_computed_beside(event: Schedule, block: int, engine: Engine) -> bool:
    """Whether another request may compute the block to its end in this very step: the one that failed to load it, if it has
    not run since, or one that has begun the block. Of a step's requests, new ones are recorded before running ones. The next
    step of this request shows whether it did."""
    step, owner = event.scheduler_step, engine.invalid[block].request or ""
    if step is None:
        return False
    waits = owner != event.request and owner in engine.tables and owner not in engine.ran_since
    begun = engine.recomputing.get(block, ())
    return waits or any(each in engine.tables and engine.ran_since.get(each) != step for each in begun)


def _judge_store(event: StorePlan, engine: Engine) -> Judgement:
    if not engine.invalid or not event.blocks_ids or event.chunk_present:
        return None
    begun = engine.recomputing
    failed = [b for b in event.blocks_ids if b in engine.invalid and event.request not in begun.get(b, ())]
    if not failed:
        return OK
    numbers = {"where": "stored", "block": failed[0], "failed": len(failed), "count": event.count}
    return Drift(numbers, [engine.invalid[failed[0]], event])


def _judge_hit(event: Lookup | LoadPlan, engine: Engine) -> Judgement:
    """Whether a lookup or a load names chunks that a step stored which ran on a failed load."""
    if not event.chunk_keys:
        return None
    known = engine.wrong_chunks.of
    wrong = [key for key in event.chunk_keys if (event.connector_id, key) in known] if known else []
    if not wrong:
        return engine.keys(event.connector_id).unsure(event.chunk_keys) or OK
    first = known[event.connector_id, wrong[0]]
    numbers = {
        "where": "found",
        "key": wrong[0],
        "other": first.store.request,
        "wrong": len(wrong),
        "found": len(event.chunk_keys),
    }
    return Drift(numbers, [first.store, first.error, event])
