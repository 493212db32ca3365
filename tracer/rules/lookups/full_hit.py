from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.contract import NOTHING_TO_RUN, breach
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


class FullHit(RequestRule[Lookup]):
    """A full hit left no token to run.

    Invariant: c + e <= N - 1 for a synchronous load: the last token must be computed again, or there are no logits to
    sample from. An asynchronous load may return all N - c; vLLM takes the last token back itself.

    Source: vLLM, `Scheduler.schedule` asserts that a synchronous admission has new tokens to run, and
    `_update_waiting_for_remote_kv` steps back by one on an asynchronous full hit. Needs the event alone.
    """

    id = "full-hit"
    severity = Severity.CRASH
    classes = ("C2",)
    hint = "Cap the answer at N - 1 - c for a synchronous load, after rounding to chunks."
    needs_history = False
    explanation = (
        "At {0:epoch} {computed} tokens were computed and the connector promised to load {returned} more within the step:"
        " {computed} + {returned} = {total}, which is the whole request. At most {at_most} may be cached, since the last"
        " token has to be run to get logits."
    )

    def judge(self, event: Lookup, account: Account) -> Judgement:
        answer = event.answer
        if not answer:
            return None
        broken = breach(event.total, event.computed, event.matched, answer, event.is_async)
        if broken is not NOTHING_TO_RUN:
            return OK if broken is None else None
        numbers = {"total": event.total, "computed": event.computed, "returned": answer}
        return Drift(numbers, [event], healed=event.refused is not None)

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"at_most": finding.numbers["total"] - 1}
