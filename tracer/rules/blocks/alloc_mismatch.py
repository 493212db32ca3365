from __future__ import annotations

from kvtrail.tracer.events.events import Alloc
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule


class AllocMismatch(RequestRule[Alloc]):
    """The scheduler allocated a different number of tokens than the lookup returned.

    Invariant: x is 0 or e, where x are the external tokens of the allocation and e is the same connector's last
    answer in the same epoch.

    x = 0 after e > 0 is legal: the answer was discarded (`skip_reading_prefix_cache`, another child of a MultiConnector,
    a second call after an asynchronous load). Source: vLLM, `Scheduler.schedule` hands the lookup's answer on to
    `update_state_after_alloc`. Needs every event of the request since its last lookup; or the connector's own words when
    it refuses, which name h and c: then x <= max(0, h - c).
    """

    id = "alloc-mismatch"
    severity = Severity.CRASH
    classes = ("C1",)
    hint = (
        "Something between lookup and allocation changed the number: a scheduler plug-in, a wrapper around the"
        " connector, or a lookup made for another request under the same id."
    )
    needs_history = False

    def judge(self, event: Alloc, account: Account) -> Judgement:
        if event.matched is not None and event.computed is not None:
            most = max(0, event.matched - event.computed)
            if event.allocated > most:
                numbers = {
                    "allocated": event.allocated,
                    "matched": event.matched,
                    "computed": event.computed,
                    "at_most": most,
                }
                return Drift(numbers, [event])
        if account.missing is not None:
            return account.missing
        if event.allocated == 0:
            return None
        lookup = account.last_lookup(event.connector_id) if event.epoch == account.epoch else None
        if lookup is None:
            return Unknown.UNSEEN
        if event.allocated == lookup.returned:
            return OK
        return Drift({"returned": lookup.returned, "allocated": event.allocated}, [lookup, event])

    def template(self, finding: Finding) -> str:
        if "at_most" in finding.numbers:
            return (
                "At {0} {allocated} external tokens were allocated. The connector held {matched} tokens of the request, of"
                " which vLLM had {computed} computed, so at most max(0, {matched} - {computed}) = {at_most} could be loaded,"
                " and it refused."
            )
        answer = "which answered 'ask me later'"
        if finding.numbers["returned"] is not None:
            answer = "which returned {returned} tokens"
        return (
            f"Let {{0.label}} = the lookup at {{0:time}}, the last before the allocation, {answer}. At {{1}} the scheduler"
            " allocated {allocated} external tokens."
        )
