from __future__ import annotations

from kvtrail.tracer.events.events import Refcount
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class DoubleFree(RequestRule[Refcount]):
    needs_history = False

    def judge(self, event: Refcount, account: Account) -> Judgement:
        counts = {"references": event.refs, "pins": event.pins}
        negative = {name: count for name, count in counts.items() if count is not None and count < 0}
        return Drift({"key": event.chunk_key, **negative}, [event]) if negative else OK
