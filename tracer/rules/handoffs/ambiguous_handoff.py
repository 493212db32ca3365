from __future__ import annotations

from kvtrail.tracer.events.events import Handoff, Side
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import PairRule


class AmbiguousHandoff(PairRule[Handoff]):
    needs_history = False

    def judge(self, event: Handoff, engine: Engine) -> Judgement:
        if event.handoff_side != Side.GIVES:
            return None
        known = engine.handoffs.namesake(event)
        if known is None:
            return OK
        name, other = known
        if other.launch != event.launch and other.engine == event.engine:
            return None  # a restarted engine has lost its kept blocks
        if other.recorder != event.recorder:
            return Unknown.ORDER
        if engine.lost_number > other.sequence:
            return Unknown.LOST
        return Drift({"name": name, "other": other.request}, [other, event])
