from __future__ import annotations

from typing import Any

from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift, Finding, Severity
from kvtrail.tracer.rules import DeadlineRule, Pending


class StuckPromotion(DeadlineRule):
    """A request never runs although its load was received.

    Invariant: a received load is followed by the request's first step within 120 seconds in which the scheduler had a
    slot and blocks for it, unless it ends or is preempted.

    An asynchronous load takes no slot. So after a burst of hits many requests wait with their loads received, for as long as
    others run, and only the time counts in which the scheduler had spare capacity, or nothing else to do.
    Source: vLLM, `Scheduler.schedule`; the incidents are vLLM #45388 (https://github.com/vllm-project/vllm/issues/45388)
    and #27074 (https://github.com/vllm-project/vllm/issues/27074). Needs every event of the request.
    """

    id = "stuck-promotion"
    severity = Severity.HANG
    classes = ("C12",)
    hint = "Requests with loaded blocks wait behind one that needs blocks, and each holds what the other waits for."
    after_s = 120.0
    """How long a request may wait for its first step after its load was received, while the scheduler could run it."""
    explanation = (
        "At {received:epoch} the request's load was received. {waited_s} seconds later it has not run a step, and holds its"
        " blocks. For {counted_s} of them the scheduler could have run it."
    )

    def pending(self, account: Account, engine: Engine) -> Pending | None:
        received = account.evidence.received
        if received is None or account.evidence.schedule is not None or account.ended_ns is not None:
            return None
        allocs = [*account.evidence.allocs.values()][-1:]
        if account.missing is not None and not allocs:
            return None  # a load is received of a request that has ended, too
        return Pending(received, Drift({}, [*allocs, received]), self.after_s, engine.clocks.spare)

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"received": finding.witness[-1]}
