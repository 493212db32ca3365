"""endless-deferral: a connector says 'ask me later' again and again."""

from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import DeadlineRule
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Drift, Finding, Severity


class EndlessDeferral(DeadlineRule):
    """A lookup is answered with 'ask me later' for minutes.

    Invariant: a row of lookups of one request that are all answered with 'ask me later' ends within 120 seconds, unless the
    request ends.

    Such answers are legal while something that the request needs is under way: a lookup in a remote store, or a store or load
    of the same chunks; none of these takes so long. What other requests do is no reason. Source: vLLM, `Scheduler.schedule`
    skips such a request in every step and has no deadline for it; the incident is vLLM #44294
    (https://github.com/vllm-project/vllm/issues/44294). Needs every event of the request.
    """

    id = "endless-deferral"
    severity = Severity.HANG
    classes = ("C12", "N6")
    hint = (
        "An answer that never comes, or a wait for whatever load is open, whoever needs it. Give up after a while and answer"
        " 0: vLLM then computes the tokens itself."
    )
    after_s = 120.0
    """How long a row of such answers may last: longer than a lookup in any store, and than a load that has not failed."""

    def pending(self, account: Account) -> tuple[Event, Drift] | None:
        deferred = account.evidence.deferred
        if deferred is None or account.ended_ns is not None:
            return None
        numbers = {"computed": deferred.computed, "total": deferred.total}
        if deferred.matched is not None:
            numbers["matched"] = deferred.matched
        return deferred, Drift(numbers, [deferred])

    def template(self, finding: Finding) -> str:
        text = (
            "At {0:epoch} the connector answered 'ask me later' for the request of {total} tokens, of which vLLM had"
            " {computed} computed, and it has answered nothing else in the {waited_s} seconds since."
        )
        n = finding.numbers
        if "matched" in n and n["matched"] <= n["computed"]:
            text += " Its store held {matched} tokens of it, so there was nothing new to wait for."
        return text
