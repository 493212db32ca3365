from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.contract import Breach, breach
from kvtrail.tracer.model.events import Lookup
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


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
    kinds = frozenset({Kind.LOOKUP})
    hint = "Cap the answer at N - 1 - c for a synchronous load, after rounding to chunks."

    def judge(self, event: Lookup, account: Account) -> Judgement:
        answer = event.answer
        if not answer:
            return None
        match breach(event.total, event.computed, event.matched, answer, event.is_async):
            case Breach.NOT_NEW:
                return None
            case None:
                return Verdict.OK
            case Breach.NOTHING_TO_RUN:
                numbers = {"total": event.total, "computed": event.computed, "returned": answer}
                return Drift(numbers, [event], healed=event.refused is not None)

    def explain(self, finding: Finding) -> str:
        (lookup,) = finding.witness
        n = finding.numbers
        return (
            f"At {lookup.label} ({clock(lookup.at_ns)}, epoch {lookup.epoch}) {n['computed']} tokens were computed and"
            f" the connector promised to load {n['returned']} more within the step: {n['computed']} + {n['returned']}"
            f" = {n['total']}, which is the whole request. At most {n['total'] - 1} may be cached, since the last token"
            " has to be run to get logits."
        )
