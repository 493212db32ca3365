from __future__ import annotations

from kvtrail.tracer.events.events import RequestEnd
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule


class LockLeak(RequestRule[RequestEnd]):
    """A request has ended but its chunks are still locked.

    Invariant: chunks locked by the lookups of a request = chunks unlocked by its loads, by an allocation of 0 tokens, or
    at its end.

    Locks that expire by themselves leak until then. Source: the lookup's contract: it may be called many times, and its
    answer need not be used. The incidents are LMCache #4852 (https://github.com/LMCache/LMCache/pull/4852), #1075
    (https://github.com/LMCache/LMCache/pull/1075) and #3770 (https://github.com/LMCache/LMCache/issues/3770). Needs a
    connector that reports its locks, and every event of the request.
    """

    id = "lock-leak"
    severity = Severity.LEAK
    classes = ("C13",)
    hint = (
        "Every lookup locks and only a load unlocks: unlock also when nothing is allocated, and lock once per request."
    )
    explanation = (
        "{locked} chunks were locked for the request, the last at {0}, and {unlocked} unlocked. At {1} it ended with {held}"
        " still locked."
    )

    def judge(self, event: RequestEnd, account: Account) -> Judgement:
        evidence = account.evidence
        if evidence.locked_ever == 0:
            return None
        if event.free_delayed:
            return Unknown.DELAYED
        held, locked = evidence.locks, evidence.locked_ever
        if held <= 0 or evidence.lock is None:
            return OK
        return Drift({"held": held, "locked": locked, "unlocked": locked - held}, [evidence.lock, event])
