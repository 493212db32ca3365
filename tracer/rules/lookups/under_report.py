"""under-report: a lookup offers less than it offered before, though as much is held."""

from __future__ import annotations

from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


class UnderReport(RequestRule[Lookup]):
    """A lookup offers less than an earlier one did, though at least as much could be loaded.

    Invariant: e >= e' if max(0, min(h, N - 1) - c) >= e', where e' is what the same connector answered to an earlier lookup
    of the request.

    An answer may always be smaller than what is held: a connector may cap its loads, or refuse small ones; both would have
    made the earlier answer smaller, too. 'Ask me later' is no answer. After a failed load anything may be answered. Source:
    the lookup's contract, after a preemption as before it; the incident is LMCache #1969
    (https://github.com/LMCache/LMCache/issues/1969). Needs a connector that shows what it matched, and every event of the
    request.
    """

    id = "under-report"
    severity = Severity.WASTED_WORK
    classes = ("C1",)
    hint = (
        "The connector takes the request for one that it has served already: forget what was planned for it when it is"
        " preempted."
    )
    explanation = (
        "At {0:epoch} the connector offered {offered} tokens of the request. At {1:epoch} it held {matched}, {computed} of"
        " which vLLM had computed, so it could offer {loadable}. It answered {returned}: the rest is computed again."
    )

    def judge(self, event: Lookup, account: Account) -> Judgement:
        answer, matched = event.answer, event.matched
        if answer is None or matched is None or event.error is not None or account.evidence.failed_ever:
            return None
        loadable = (matched if matched < event.total else event.total - 1) - event.computed
        if answer >= loadable:
            return OK if loadable > 0 else None
        earlier = [
            lookup
            for lookup in account.evidence.recent_lookups
            if lookup.connector_id == event.connector_id and lookup.answer and lookup.answer <= loadable
        ]
        if not earlier:
            return None
        best = max(earlier, key=lambda lookup: lookup.answer or 0)
        offered = best.answer or 0
        if answer >= offered:
            return OK
        numbers = {
            "offered": offered,
            "matched": matched,
            "computed": event.computed,
            "loadable": loadable,
            "returned": answer,
        }
        return Drift(numbers, [best, event])
