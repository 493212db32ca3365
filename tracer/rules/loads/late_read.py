from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Read
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule


class LateRead(RequestRule[Read]):
    """A request's blocks were read after they had been released.

    Invariant: no read of a request's blocks by another instance after their lease has expired or they were freed, in the
    order of one recorder or log.

    Source: freed blocks belong to others; a later read must fail the request that reads. The incident is
    aws-do-eks #84 (https://github.com/aws-samples/aws-do-eks/pull/84). Needs a log, or a probe that sees readers' reports on
    the engine that prefills (NIXL's pull). Which request has read them is known where the other engine is recorded, too
    (`stale-handoff`).
    """

    id = "late-read"
    severity = Severity.WRONG_OUTPUT
    classes = ("C16",)
    hint = "The lease is shorter than the reader's queue: make it longer, and let the reader check what it has read."
    needs_history = False
    explanation = (
        "At {0} the request's blocks were given back: {why}. At {1}, {late_s} seconds later, another instance read"
        " them."
    )

    def judge(self, event: Read, account: Account) -> Judgement:
        freed = account.evidence.freed
        if freed is None:
            return OK if account.missing is None else account.missing
        if freed.recorder != event.recorder:
            return Unknown.ORDER
        late_s = round((event.start_ns - freed.end_ns) / 1e9, 3)
        return Drift({"late_s": late_s, "expired": bool(freed.lease_expired)}, [freed, event])

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"why": "their lease had expired" if finding.numbers["expired"] else "the request was over"}
