from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, Job, Plan, Received, StorePlan, TransferEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule


class BlockReuse(EngineRule[TransferEnd | Received]):
    def judge(self, event: TransferEnd | Received, engine: Engine) -> Judgement:
        if type(event) is TransferEnd:
            key: Job | str = event.job
            transfer: Alloc | Plan | None = engine.jobs.get(event.job)
        else:
            key = event.request or ""
            transfer = engine.loads.get(key)
        if transfer is None:
            return engine.missing if type(event) is TransferEnd or event.request not in engine.met else None
        if key in engine.undecided:
            return engine.missing
        if key not in engine.contested:
            return OK if transfer.blocks_ids is not None else Unknown.LEVEL
        block, given = engine.contested[key]
        what = "store" if type(transfer) is StorePlan else "load"
        numbers = {"block": block, "other": given.request, "transfer": what}
        return Drift(numbers, [transfer, given, event], connector=transfer.connector)
