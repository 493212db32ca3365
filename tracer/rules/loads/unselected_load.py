from __future__ import annotations

from kvtrail.tracer.events.events import LoadPlan
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule


class UnselectedLoad(RequestRule[LoadPlan]):
    """A connector loads although nothing was allocated for it.

    Invariant: x > 0 in the connector's last allocation of the epoch before it plans a load. x = 0 means that its answer
    was not taken: another child of a MultiConnector was chosen, or the tokens are recomputed.

    Blocks without tokens are legal, and so is storing. Source: vLLM, `MultiConnector.update_state_after_alloc` hands 0
    tokens to the children it has not chosen; the incidents are LMCache #4355
    (https://github.com/LMCache/LMCache/pull/4355) and vLLM #42841 (https://github.com/vllm-project/vllm/pull/42841).
    Needs a probe that reads plans, and every event since the allocation.
    """

    id = "unselected-load"
    severity = Severity.CRASH
    classes = ("C19",)
    hint = "The load is planned at the lookup instead of at the allocation, or `num_external_tokens` is not looked at."
    explanation = (
        "At {0} the scheduler allocated 0 external tokens for this connector. At {1} it plans to load {count} tokens all the"
        " same."
    )

    def judge(self, event: LoadPlan, account: Account) -> Judgement:
        alloc = account.evidence.allocs.get(event.connector_id)
        if alloc is None or event.epoch != account.epoch:
            return Unknown.UNSEEN
        if alloc.allocated:
            return OK
        return Drift({"allocated": 0, "count": event.count}, [alloc, event])
