from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import LoadPlan, StorePlan
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


class LoadStoreOverlap(RequestRule[LoadPlan]):
    """A load of a request begins while a store of it is open.

    Invariant: open stores = 0 when a load is planned; for connectors with the capability `exclusive_transfers`.

    Others may overlap: LMCache stores later chunks while earlier ones load. Source: vLLM, the OffloadingConnector asserts
    that a request has either one load or stores under way; the incident is vLLM #46014
    (https://github.com/vllm-project/vllm/issues/46014). Needs a probe that reads plans and their numbers, and every event
    of the request.
    """

    id = "load-store-overlap"
    only_with = "transfer_id"
    severity = Severity.CRASH
    classes = ("C18",)
    hint = "The request was preempted and came back before its store had ended. Flush, and wait for the completion."
    explanation = "Store {store} of the request began at {0:epoch} and has not ended. At {1:epoch} load {load} begins."

    def judge(self, event: LoadPlan, account: Account) -> Judgement:
        if event.transfer_id is None or not event.has(Capability.EXCLUSIVE_TRANSFERS):
            return None
        plans = (job for job in account.evidence.jobs.values() if job.connector_id == event.connector_id)
        store = next((plan for plan in plans if isinstance(plan, StorePlan)), None)
        if store is None:
            return OK
        return Drift({"store": store.transfer_id, "load": event.transfer_id, "count": event.count}, [store, event])
