from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.patience import MARGIN_S, of_connector
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift
from kvtrail.tracer.rules.rule import DeadlineRule, Pending


class LateFree(DeadlineRule):
    after_s = 600.0
    """The time that a connector may keep the blocks of a finished request: longer than the longest lease, NIXL's 480 s."""

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
            return Pending(evidence.ended, drift, self.after_s, stepping, after_earlier_transfers=True)
        return None
