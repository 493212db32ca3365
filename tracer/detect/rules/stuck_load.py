from __future__ import annotations

from typing import Any

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import DeadlineRule
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Drift, Finding, Severity


class StuckLoad(DeadlineRule):
    """An asynchronous load has not been received in time.

    Invariant: an allocation with x > 0 for an asynchronous load is followed by the load's completion within 120 seconds, and
    a load error by the load's completion or the request's next step, unless the request ends.

    An error alone resumes nobody. An answer of 'ask me later' is no load and may be repeated. Source: vLLM, a request in
    WAITING_FOR_REMOTE_KVS waits for the workers' report for ever; the incidents are vLLM #53095
    (https://github.com/vllm-project/vllm/issues/53095) and dynamo #5012
    (https://github.com/ai-dynamo/dynamo/issues/5012). Needs every event of the request.
    """

    id = "stuck-load"
    severity = Severity.HANG
    classes = ("C12",)
    hint = (
        "The sender's lease ran out, a notification was lost, or an error was swallowed: report it as `failed_recving`."
    )
    after_s = 120.0
    """How long an asynchronous load may take: four times the lease that vLLM's NIXL connector gives."""

    def pending(self, account: Account) -> tuple[Event, Drift] | None:
        alloc, error, step = account.evidence.loading, account.evidence.load_error, account.evidence.schedule
        if account.ended_ns is not None:
            return None
        if alloc is not None and error is None:
            return alloc, Drift({"allocated": alloc.allocated}, [alloc])
        every_step_is_known = (  # its later ones are told since the error, whatever they say
            step is not None and step.blocks_ids is not None and step.sequence >= account.evidence.known_from
        )
        if error is None or not (alloc is not None or every_step_is_known):
            return None
        return error, Drift({"failed_blocks": len(error.blocks_ids)}, [error] if alloc is None else [alloc, error])

    def template(self, finding: Finding) -> str:
        if "failed_blocks" in finding.numbers:
            return (
                "At {error} {failed_blocks} of the request's blocks were reported as not loaded. {waited_s} seconds later the"
                " request has neither run again nor ended."
            )
        return (
            "At {0:epoch} {allocated} tokens began to load asynchronously. {waited_s} seconds later the load is neither"
            " finished nor failed, and the request waits."
        )

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"error": finding.witness[-1]}
