from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, LoadPlan, StorePlan
from kvtrail.tracer.ledger.block_table import loaded_into
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule


class ReadBeforeLoaded(EngineRule[Alloc | StorePlan]):
    only_with = "blocks_ids"

    def judge(self, event: Alloc | StorePlan, engine: Engine) -> Judgement:
        return _judge_hit(event, engine) if type(event) is Alloc else _judge_store(event, engine)


def _judge_hit(event: Alloc, engine: Engine) -> Judgement:
    """Whether a request is given, as computed, blocks into which another request is still loading."""
    if event.blocks_ids is None or event.error is not None or not engine.loads:
        return None
    shared: dict[str, list[int]] = {}
    for block in event.blocks_ids:
        for owner in engine.transfers.get(block, ()):
            table = engine.tables.get(owner)
            if owner != event.request and table is not None and table.holds(block):
                shared.setdefault(owner, []).append(block)
    for owner, blocks in shared.items():
        load = engine.loads.get(owner)
        if load is None:
            continue  # they are stored, or loaded within a step
        if not load.block_size or load.total is None:
            return Unknown.UNSEEN
        into = frozenset(loaded_into(load))
        hit = [block for block in blocks if block in into]
        if hit:
            numbers = {
                "where": "hit",
                "owner": owner,
                "loading": load.allocated,
                "shared": len(hit),
                "block": hit[0],
            }
            return Drift(numbers, [load, event])
    return OK


def _judge_store(event: StorePlan, engine: Engine) -> Judgement:
    """Whether the connector stores blocks into which an open load writes, whichever child of a MultiConnector loads."""
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
    return Drift({"where": "stored", "block": block, "open": len(loads), "count": event.count}, [loads[block], event])
