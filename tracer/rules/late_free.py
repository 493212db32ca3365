from __future__ import annotations

from tracer.account import Account
from tracer.findings import Drift, Finding, Severity, clock
from tracer.rules import DeadlineRule

AFTER_S = 600.0
"""How long a connector may keep the blocks of a finished request: longer than the longest lease, 480 s in NIXL's."""


class LateFree(DeadlineRule):
    """A finished request's blocks are never given back.

    Invariant: `request_finished` -> True is followed by one `finished_sending` for the request within 600 seconds.

    A connector may keep blocks as long as its lease. Source: vLLM, `Scheduler._free_request` frees at once or when the
    workers report; the incidents are vLLM #46283 (https://github.com/vllm-project/vllm/issues/46283) and #41269
    (https://github.com/vllm-project/vllm/pull/41269). Needs every event of the request.
    """

    id = "late-free"
    severity = Severity.LEAK
    classes = ("C13",)
    hint = "The reader never came, or its notification was lost. Free when the lease ends, and count it."

    def __init__(self, after_s: float = AFTER_S) -> None:
        self.after_s = after_s

    def overdue(self, account: Account, now_ns: int) -> Drift | None:
        end = account.books.end
        if end is None or not account.complete:
            return None
        waited_s = (now_ns - end.end_ns) / 1e9
        if waited_s < self.after_s:
            return None
        return Drift({"waited_s": round(waited_s, 1)}, [end])

    def explain(self, finding: Finding) -> str:
        (end,) = finding.witness
        return (
            f"At {end.label} ({clock(end.at_ns)}) the request ended and the connector kept its blocks."
            f" {finding.numbers['waited_s']} seconds later they have not been given back."
        )
