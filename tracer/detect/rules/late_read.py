from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


class LateRead(RequestRule[Event]):
    """A request's blocks were read after they had been given back.

    Invariant: no read of a request's blocks by another instance after their lease has expired or they were freed.

    Source: what is freed belongs to others; a read after it must fail the request that reads. The incident is
    aws-do-eks #84 (https://github.com/aws-samples/aws-do-eks/pull/84). Needs a log or a connector that tells of both.
    """

    id = "late-read"
    severity = Severity.WRONG_OUTPUT
    classes = ("C16",)
    kinds = frozenset({Kind.READ})
    hint = "The lease is shorter than the reader's queue: make it longer, and let the reader check what it has read."

    def judge(self, event: Event, account: Account) -> Judgement:
        freed = account.evidence.freed
        if freed is None:
            return Verdict.OK if account.complete else Verdict.UNKNOWN
        late_s = round((event.start_ns - freed.end_ns) / 1e9, 3)
        return Drift({"late_s": late_s, "expired": bool(freed.lease_expired)}, [freed, event])

    def explain(self, finding: Finding) -> str:
        freed, read = finding.witness
        n = finding.numbers
        why = "their lease had expired" if n["expired"] else "the request was over"
        return (
            f"At {freed.label} ({clock(freed.at_ns)}) the request's blocks were given back: {why}. At {read.label}"
            f" ({clock(read.at_ns)}), {n['late_s']} seconds later, another instance read them."
        )
