from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import DeadlineRule
from kvtrail.tracer.model.findings import Drift, Finding, Severity, clock

AFTER_S = 120.0
"""How long a request whose load has been received may wait for its first step."""


class StuckPromotion(DeadlineRule):
    """A request's load was received, and it never runs.

    Invariant: a received load is followed by the request's first step within 120 seconds, unless it ends or is preempted.

    A busy engine may let it wait that long only if it is far too small: the blocks it waits for are held by it. Source:
    vLLM, `Scheduler.schedule`; the incidents are vLLM #45388 (https://github.com/vllm-project/vllm/issues/45388) and #27074
    (https://github.com/vllm-project/vllm/issues/27074). Needs every event of the request.
    """

    id = "stuck-promotion"
    severity = Severity.HANG
    classes = ("C12",)
    hint = "Requests with loaded blocks wait behind one that needs blocks, and each holds what the other waits for."

    def __init__(self, after_s: float = AFTER_S) -> None:
        self.after_s = after_s

    def overdue(self, account: Account, now_ns: int) -> Drift | None:
        evidence = account.evidence
        received = evidence.received
        if received is None or evidence.schedule is not None or account.ended_ns is not None or not account.complete:
            return None
        waited_s = (now_ns - received.end_ns) / 1e9
        if waited_s < self.after_s:
            return None
        return Drift({"waited_s": round(waited_s, 1)}, [*[*evidence.allocs.values()][-1:], received])

    def explain(self, finding: Finding) -> str:
        received = finding.witness[-1]
        return (
            f"At {received.label} ({clock(received.at_ns)}, epoch {received.epoch}) the request's load was received."
            f" {finding.numbers['waited_s']} seconds later it has not run a step, and holds its blocks."
        )
