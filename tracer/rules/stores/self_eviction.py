from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import StorePlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import EngineRule


class SelfEviction(EngineRule[StorePlan]):
    id = "self-eviction"

    def judge(self, event: StorePlan, engine: Engine) -> Judgement:
        if event.chunk_present or not event.count or not event.chunk_keys or event.start is None:
            return None
        if event.has(Capability.EVICTS_ANY):
            return None
        if event.request not in engine.met:
            return engine.missing
        known = engine.keys(event.connector_id)
        for key, out in engine.own_chunks.pushed_out.get(event.request, {}).items():
            ours = out.event.connector_id == event.connector_id and key not in event.chunk_keys
            if ours and out.start < event.start and known.holds(key) is False:
                return Drift({"key": key, "position": out.start, "start": event.start}, [out.event, event])
        return OK
