from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.contract import NOT_NEW, breach, new_at_most
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import RequestRule
from kvtrail.tracer.rules.lookups.stale_lookup import earlier_source


class OverReport(RequestRule[Lookup]):
    """A lookup returned more tokens than can be new.

    Invariant: e is None, or 0 <= e <= max(0, min(h, N) - c), with h = N where the connector hides what it matched.

    Source: vLLM, `Scheduler.schedule` asserts local + external computed tokens <= the request's tokens. Needs the event
    alone. An answer that repeats an earlier one is left to stale-lookup.
    """

    id = "over-report"
    severity = Severity.CRASH
    classes = ("C1",)
    hint = (
        "The connector counts tokens that vLLM has already computed, tokens that its store does not hold, or pads to a"
        " chunk beyond the request's end."
    )
    needs_history = False
    explanation = (
        "At {0:epoch} the request had {total} tokens, {computed} of them computed{held}, so between 0 and {at_most} can be"
        " new. The connector answered {returned}."
    )

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

    def values(self, finding: Finding) -> dict[str, Any]:
        matched = finding.numbers["matched"]
        return {"held": "" if matched is None else f" and the store held {matched} tokens of it"}
