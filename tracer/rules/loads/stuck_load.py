from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.patience import of_connector
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift, Finding, Severity
from kvtrail.tracer.rules import DeadlineRule, Pending

MARGIN_S = 60.0
"""How much later than the connector's own patience."""
LEAST_TOKENS_PER_S = 1000.0
"""A store that loads less in all is of no use: the engine computes faster."""


UNSEEN_S = 600.0
"""The same where not all requests are recorded: nobody knows what else the connector has to load."""
AFTER_S = 120.0
"""How long an asynchronous load may take: four times the lease that vLLM's NIXL connector gives."""


def within_s(event: Event, tokens: int, engine: Engine) -> float:
    """How long a load of so many tokens may take, or an answer for which another engine is needed, since it was the turn of
    the event's connector."""
    patience_s = of_connector(event.connector, event.patience).load_s
    least_s = AFTER_S if engine.blind is None else UNSEEN_S
    if patience_s is not None:
        least_s = max(least_s, patience_s + MARGIN_S)
    return least_s + max(tokens, engine.flow.loading(event.connector_id)) / LEAST_TOKENS_PER_S


class StuckLoad(DeadlineRule):
    """An asynchronous load has not been received in time.

    Invariant: an allocation with x > 0 for an asynchronous load is followed by the load's completion within 120 seconds and a
    second for each 1,000 tokens that the connector is loading, and a load error by the load's completion or the
    request's next step within 120 seconds, unless the request ends. Where the connector declares that it waits for longer for
    another engine, it is that and a minute.

    The time counts in which the scheduler made steps, since completions are reported in steps, and begins again with
    the end of each transfer that began before the load or with it: it may have been the other's turn. An error alone
    resumes nobody. An answer of 'ask me later' is no load and may be repeated. Source: vLLM, a request in
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
    after_s = AFTER_S

    def pending(self, account: Account, engine: Engine) -> Pending | None:
        alloc, error, step = account.evidence.loading, account.evidence.load_error, account.evidence.schedule
        if account.ended_ns is not None:
            return None
        if alloc is not None and error is None:
            return Pending(
                alloc,
                Drift({"allocated": alloc.allocated}, [alloc]),
                within_s(alloc, alloc.allocated, engine),
                engine.means.stepping,
                in_turn=True,
            )
        every_step_is_known = (  # its later ones are told since the error, whatever they say
            step is not None and step.blocks_ids is not None and step.sequence >= account.evidence.known_from
        )
        if error is None or not (alloc is not None or every_step_is_known):
            return None
        drift = Drift({"failed_blocks": len(error.blocks_ids)}, [error] if alloc is None else [alloc, error])
        return Pending(error, drift, self.after_s, engine.means.stepping)

    def template(self, finding: Finding) -> str:
        if "failed_blocks" in finding.numbers:
            return (
                "At {error} {failed_blocks} of the request's blocks were reported as not loaded. {waited_s} seconds later the"
                " request has neither run again nor ended."
            )
        return (
            "At {0:epoch} {allocated} tokens began to load asynchronously. {waited_s} seconds later the load is neither"
            " finished nor failed, and the request waits. {counted_s} of them count."
        )

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"error": finding.witness[-1]}
