from __future__ import annotations

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.patience import MARGIN_S, of_connector
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift
from kvtrail.tracer.rules.rule import DeadlineRule, Pending

LEAST_TOKENS_PER_S = 1000.0
"""Minimum useful load rate of a store in tokens per second: below it, the engine computes faster."""


UNSEEN_S = 600.0
"""Maximum time of a load in seconds if not all requests are recorded, as the connector's other loads are then unknown."""
AFTER_S = 120.0
"""Maximum time of an asynchronous load in seconds: four times the lease of vLLM's NIXL connector."""


def within_s(event: Event, tokens: int, engine: Engine) -> float:
    """The time in seconds that a load of this number of tokens may take, or an answer that needs another engine. It counts
    from the moment when the event's connector could begin."""
    patience_s = of_connector(event.connector, event.patience).load_s
    least_s = AFTER_S if engine.blind is None else UNSEEN_S
    if patience_s is not None:
        least_s = max(least_s, patience_s + MARGIN_S)
    return least_s + max(tokens, engine.flow.loading(event.connector_id)) / LEAST_TOKENS_PER_S


class StuckLoad(DeadlineRule):
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
                engine.clocks.stepping,
                after_earlier_transfers=True,
            )
        every_step_is_known = (  # later ones are recorded since the error, whatever they say
            step is not None and step.blocks_ids is not None and step.sequence >= account.evidence.known_from
        )
        if error is None or not (alloc is not None or every_step_is_known):
            return None
        drift = Drift({"failed_blocks": len(error.blocks_ids)}, [error] if alloc is None else [alloc, error])
        return Pending(error, drift, self.after_s, engine.clocks.stepping)
