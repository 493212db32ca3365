from __future__ import annotations

from kvtrail.tracer.events.contract import NOT_NEW, breach, new_at_most
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.lookups.stale_lookup import earlier_source
from kvtrail.tracer.rules.rule import RequestRule


class OverReport(RequestRule[Lookup]):
    needs_history = False

    def judge(self, event: Lookup, account: Account) -> Judgement:
        answer = event.answer
        if answer is None:
            return None
        if breach(event.total, event.computed, event.matched, answer, event.is_async) is not NOT_NEW:
            return OK
        if event.cached or earlier_source(event, account) is not None:
            return None
        numbers = {
            "total": event.total,
            "matched": event.matched,
            "computed": event.computed,
            "returned": answer,
            "at_most": new_at_most(event.total, event.computed, event.matched),
        }
        return Drift(numbers, [event], healed=event.refused is not None)
