from __future__ import annotations

from kvtrail.tracer.events.events import Alloc
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import RequestRule


class AllocMismatch(RequestRule[Alloc]):
    needs_history = False

    def judge(self, event: Alloc, account: Account) -> Judgement:
        if event.matched is not None and event.computed is not None:
            most = max(0, event.matched - event.computed)
            if event.allocated > most:
                numbers = {
                    "allocated": event.allocated,
                    "matched": event.matched,
                    "computed": event.computed,
                    "at_most": most,
                }
                return Drift(numbers, [event])
        if account.missing is not None:
            return account.missing
        if event.allocated == 0:
            return None
        lookup = account.last_lookup(event.connector_id) if event.epoch == account.epoch else None
        if lookup is None:
            return Unknown.UNSEEN
        if event.allocated == lookup.returned:
            return OK
        return Drift({"returned": lookup.returned, "allocated": event.allocated}, [lookup, event])
