from __future__ import annotations

from kvtrail.tracer.events.patience import MARGIN_S, of_connector
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift
from kvtrail.tracer.rules.rule import DeadlineRule, Pending


class EndlessDeferral(DeadlineRule):
    after_s = 120.0
    """Maximum time in seconds of consecutive 'ask me later' answers: longer than a lookup in any store."""

    def pending(self, account: Account, engine: Engine) -> Pending | None:
        evidence = account.evidence
        deferred = evidence.deferred
        if deferred is None or account.ended_ns is not None:
            return None
        numbers = {"computed": deferred.computed, "total": deferred.total}
        if deferred.matched is not None:
            numbers["matched"] = deferred.matched
        patience_s = of_connector(deferred.connector, deferred.patience).load_s
        within_s = max(self.after_s, 0.0 if patience_s is None else patience_s + MARGIN_S)
        return Pending(
            deferred,
            Drift(numbers, [deferred]),
            within_s,
            engine.clocks.spare,
            after_earlier_transfers=True,
            min_active_s=evidence.deferred_ns / 1e9,
        )
