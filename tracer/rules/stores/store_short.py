from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import RequestEnd, StorePlan
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import Groups, RequestRule
from kvtrail.tracer.rules.stores.store_gap import held_until


class StoreShort(RequestRule[RequestEnd]):
    """The connector began to store a request and stopped before its prompt's end.

    Invariant: at a request's end, max(end of its stores, h) >= floor_k(min(P, n)), if anything of it was stored in the
    epoch, where h is the matched prefix, P the prompt, n the first token of the last step and k the chunk size.

    Tokens of the last step may be rejected or come too late to be stored; output is stored only on request; a connector
    may be configured to store nothing of a request, and may say, by a plan of 0 tokens, that it has no room. Recorded
    contents of the store cannot replace the declaration, for the reasons that `store-gap` gives, and since a chunk that
    nobody has stored may be one that the connector was told not to. Source: prefix lookup, as all connectors of vLLM have
    it; the incidents are vLLM #53498 (https://github.com/vllm-project/vllm/issues/53498), where 112 of 217 blocks were
    stored, and LMCache #3012 (https://github.com/LMCache/LMCache/pull/3012). Needs the capability
    `reports_all_stores` (OffloadConnector, LMCache), and every event of the epoch.
    """

    id = "store-short"
    severity = Severity.WASTED_WORK
    groups = Groups.FULL
    level = Level.DETAILED
    classes = ("C21",)
    hint = (
        "The count of what is to be stored leaves out the tokens that were matched, or nothing is flushed at the end."
    )
    explanation = (
        "At {1} {computed} of the prompt's {prompt} tokens were computed, so that {wanted} could be stored. When the request"
        " ended at {2.label}, {held} were; the last store is {0}."
    )

    def judge(self, event: RequestEnd, account: Account) -> Judgement:
        step, stored = account.evidence.schedule, account.evidence.stored
        if step is None or not stored:
            return None
        judged = False
        drifts = []
        for connector_id, each in stored.items():  # one end is recorded for all children of a MultiConnector
            store, size = each.last, each.last.chunk_size
            if not size or not store.has(Capability.REPORTS_ALL_STORES):
                continue
            if isinstance(store, StorePlan) and not store.count:
                continue  # the connector said that it had no room
            if account.prompt is None:
                return Unknown.UNSEEN
            judged = True
            reached = min(account.prompt, step.computed)
            wanted, held = reached // size * size, held_until(connector_id, account)
            if held < wanted:
                numbers = {"prompt": account.prompt, "computed": reached, "held": held, "wanted": wanted}
                drifts.append(Drift(numbers, [store, step, event], connector=store.connector))
        return tuple(drifts) or (OK if judged else None)
