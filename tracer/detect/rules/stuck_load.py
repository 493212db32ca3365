from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import DeadlineRule
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Drift, Severity


class StuckLoad(DeadlineRule):
    """An asynchronous load has not been received in time.

    Invariant: an allocation with x > 0 for an asynchronous load is followed by the load's completion or its error within
    120 seconds, unless the request ends.

    An answer of 'ask me later' is no load and may be repeated. Source: vLLM, a request in WAITING_FOR_REMOTE_KVS waits
    for the workers' report for ever; the incidents are vLLM #53095 (https://github.com/vllm-project/vllm/issues/53095)
    and dynamo #5012 (https://github.com/ai-dynamo/dynamo/issues/5012). Needs every event of the request.
    """

    id = "stuck-load"
    severity = Severity.HANG
    classes = ("C12",)
    hint = (
        "The sender's lease ran out, a notification was lost, or an error was swallowed: report it as `failed_recving`."
    )
    after_s = 120.0
    """How long an asynchronous load may take: four times the lease that vLLM's NIXL connector gives."""
    explanation = (
        "At {0:epoch} {allocated} tokens began to load asynchronously. {waited_s} seconds later the load is neither finished"
        " nor failed, and the request waits."
    )

    def pending(self, account: Account) -> tuple[Event, Drift] | None:
        alloc = account.evidence.loading
        if alloc is None or account.ended_ns is not None or account.evidence.load_failed:
            return None
        return alloc, Drift({"allocated": alloc.allocated}, [alloc])
