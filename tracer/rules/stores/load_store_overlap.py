from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import LoadPlan, StorePlan
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class LoadStoreOverlap(RequestRule[LoadPlan]):
    def judge(self, event: LoadPlan, account: Account) -> Judgement:
        if event.transfer_id is None or not event.has(Capability.EXCLUSIVE_TRANSFERS):
            return None
        plans = (job for job in account.evidence.jobs.values() if job.connector_id == event.connector_id)
        store = next((plan for plan in plans if isinstance(plan, StorePlan)), None)
        if store is None:
            return OK
        return Drift({"store": store.transfer_id, "load": event.transfer_id, "count": event.count}, [store, event])
