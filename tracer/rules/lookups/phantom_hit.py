from __future__ import annotations

from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import EngineRule


class PhantomHit(EngineRule[Lookup]):
    def judge(self, event: Lookup, engine: Engine) -> Judgement:
        if not event.chunk_keys:
            return None
        known = engine.keys(event.connector_id)
        missing = known.missing(event.chunk_keys)
        if not missing:
            return known.unsure(event.chunk_keys) or OK
        numbers = {
            "claimed": len(event.chunk_keys),
            "missing": len(missing),
            "key": missing[0],
            "matched": event.matched,
        }
        return Drift(numbers, [event])
