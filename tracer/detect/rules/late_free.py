from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import DeadlineRule
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Drift, Finding, Severity


class LateFree(DeadlineRule):
    """A finished request's blocks are never given back.

    Invariant: `request_finished` -> True is followed by one `finished_sending` for the request within 600 seconds; the
    end of a request whose asynchronous load is under way, by the end of that load.

    A connector may keep blocks as long as its lease; blocks that are freed when the lease ends are not late. Source:
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

    def pending(self, account: Account) -> tuple[Event, Drift] | None:
        evidence = account.evidence
        if evidence.ended is None:
            return None
        if evidence.end is not None:
            return evidence.end, Drift({}, [evidence.end])
        if evidence.loading is not None:
            return evidence.ended, Drift({"loading": evidence.loading.allocated}, [evidence.loading])
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
            " back."
        )
