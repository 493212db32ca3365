from __future__ import annotations

from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class UnderReport(RequestRule[Lookup]):
    def judge(self, event: Lookup, account: Account) -> Judgement:
        answer, matched = event.answer, event.matched
        if answer is None or matched is None or event.error is not None or account.evidence.failed_ever:
            return None
        loadable = (matched if matched < event.total else event.total - 1) - event.computed
        if answer >= loadable:
            return OK if loadable > 0 else None
        earlier = [
            lookup
            for lookup in account.evidence.recent_lookups
            if lookup.connector_id == event.connector_id and lookup.answer and lookup.answer <= loadable
        ]
        if not earlier:
            return None
        best = max(earlier, key=lambda lookup: lookup.answer or 0)
        offered = best.answer or 0
        if answer >= offered:
            return OK
        numbers = {
            "offered": offered,
            "matched": matched,
            "computed": event.computed,
            "loadable": loadable,
            "returned": answer,
        }
        return Drift(numbers, [best, event])
