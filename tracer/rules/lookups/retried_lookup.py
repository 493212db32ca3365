from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Store, StorePlan
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule
from kvtrail.tracer.rules.stores.store_gap import hole


class RetriedLookup(RequestRule[Store | StorePlan]):
    def judge(self, event: Store | StorePlan, account: Account) -> Judgement:
        if type(event) is Store and event.role != SCHEDULER:
            return None
        asked = account.evidence.repeated_hits.get(event.connector_id, 0)
        if asked < 2 or event.epoch != account.epoch or not event.has(Capability.REPORTS_ALL_STORES):
            return None
        begins = hole(event, account)
        if begins is None:
            return OK
        lookup = account.last_lookup(event.connector_id)
        matched = None if lookup is None else lookup.matched
        numbers = {"asked": asked, "matched": matched, "begins": event.start, "held": begins}
        return Drift(numbers, [event] if lookup is None else [lookup, event])
