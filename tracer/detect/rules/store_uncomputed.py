from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.events import StorePlan
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


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
    kinds = frozenset({Kind.STORE_PLAN})
    hint = "Count placeholders and drafts out: store up to the tokens computed before the step, or up to the verified ones."

    def judge(self, event: StorePlan, account: Account) -> Judgement:
        step = account.evidence.schedule
        if event.start is None or event.chunk_present:
            return None
        if not account.complete or step is None or step.blocks_ids is None or event.epoch != account.epoch:
            return Verdict.UNKNOWN
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

    def explain(self, finding: Finding) -> str:
        step, store = finding.witness
        n = finding.numbers
        return (
            f"The step at {step.label} ({clock(step.at_ns)}) begins at {n['computed']} and runs {n['scheduled']} tokens,"
            f" {n['drafted']} of them speculative: {n['at_most']} are sure. At {store.label} the connector stores up to"
            f" {n['end']}."
        )
