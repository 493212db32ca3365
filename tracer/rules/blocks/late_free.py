from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.patience import of_connector
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift, Finding, Severity
from kvtrail.tracer.rules import DeadlineRule, Pending

MARGIN_S = 60.0
"""How much later than the lease."""


class LateFree(DeadlineRule):
    """A finished request's blocks are never given back.

    Invariant: `request_finished` -> True is followed by one `finished_sending` for the request within 600 seconds, or within
    the lease and a minute where that is longer; of a connector that reports each extension of a lease (`reports_leases`:
    NIXL, Mooncake), within the lease and a minute. The end of a request during its asynchronous load is followed by
    the end of that load within 600 seconds.

    A connector may keep blocks as long as its lease; blocks that are freed when the lease ends are not late. Only the time
    counts in which the scheduler made steps: a paused engine is given no report. Source:
    vLLM, `Scheduler._free_request` frees at once or when the workers report, `Scheduler.finish_requests` waits for a
    load; the incidents are vLLM #46283 (https://github.com/vllm-project/vllm/issues/46283) and #51637
    (https://github.com/vllm-project/vllm/issues/51637). Needs every event of the request.
    """

    id = "late-free"
    severity = Severity.LEAK
    classes = ("C13",)
    hint = "The reader never came, or its notification was lost. Free when the lease ends, and count it."
    after_s = 600.0
    """How long a connector may keep the blocks of a finished request: longer than the longest lease, NIXL's 480 s."""

    def pending(self, account: Account, engine: Engine) -> Pending | None:
        evidence, stepping = account.evidence, engine.clocks.stepping
        if evidence.ended is None:
            return None
        if evidence.end is not None:
            end = evidence.end
            since = evidence.lease or end
            if since.lease_s is not None and end.has(Capability.REPORTS_LEASES):
                drift = Drift({"lease_s": since.lease_s}, [end] if since is end else [end, since])
                return Pending(since, drift, since.lease_s + MARGIN_S, stepping)
            keep_s = end.lease_s or of_connector(end.connector, end.patience).keep_s or 0.0
            numbers = {} if end.lease_s is None else {"lease_s": end.lease_s}
            return Pending(end, Drift(numbers, [end]), max(self.after_s, keep_s + MARGIN_S), stepping)
        if evidence.loading is not None:
            drift = Drift({"loading": evidence.loading.allocated}, [evidence.loading])
            return Pending(evidence.ended, drift, self.after_s, stepping, in_turn=True)
        return None

    def template(self, finding: Finding) -> str:
        if "loading" in finding.numbers:
            return (
                "At {0} {loading} tokens began to load asynchronously, and the request ended before they had come. {waited_s}"
                " seconds after its end the load has not been reported as over, and until then the scheduler keeps the"
                " blocks."
            )
        return (
            "At {0} the request ended and the connector kept its blocks. {waited_s} seconds later they have not been given"
            " back. {counted_s} of them count, in which it could have been reported."
        )
