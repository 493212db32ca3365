from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.events import StorePlan
from kvtrail.tracer.model.findings import Drift, Judgement, Severity, Unknown, Verdict


class StoreUncomputed(RequestRule[StorePlan]):
    """The connector stores tokens that are not computed, or may still be rejected.

    Invariant: a store's end <= n + s - d, where the step begins at n and runs s tokens, d of them speculative: the KV of
    drafts is overwritten when they are rejected.

    Source: vLLM, `Scheduler.update_from_output` takes rejected tokens back; the incident is LMCache #886
    (https://github.com/LMCache/LMCache/issues/886). Needs every step of the request (level `detailed`) and a probe that
    reads plans.
    """

    id = "store-uncomputed"
    severity = Severity.WRONG_OUTPUT
    classes = ("C22",)
    hint = "Count placeholders and drafts out: store up to the tokens computed before the step, or up to the verified ones."
    explanation = (
        "The step at {0} begins at {computed} and runs {scheduled} tokens, {drafted} of them speculative: {at_most} are sure."
        " At {1.label} the connector stores up to {end}."
    )

    def judge(self, event: StorePlan, account: Account) -> Judgement:
        step = account.evidence.schedule
        if event.start is None or event.chunk_present:
            return None
        if step is None or step.blocks_ids is None or event.epoch != account.epoch:
            return Unknown.LEVEL
        end, drafted = event.start + event.count, step.drafted or 0
        most = step.computed + step.scheduled - drafted
        if end <= most:
            return Verdict.OK
        numbers = {
            "end": end,
            "computed": step.computed,
            "scheduled": step.scheduled,
            "drafted": drafted,
            "at_most": most,
        }
        return Drift(numbers, [step, event])
