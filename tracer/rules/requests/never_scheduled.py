from __future__ import annotations

from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift
from kvtrail.tracer.rules.rule import DeadlineRule, Pending

ADMITTED_AFTER_S = 600.0
"""Seconds that a request may wait for blocks after its first lookup of the epoch while the engine has nothing else to do."""


class NeverScheduled(DeadlineRule):
    after_s = 120.0
    """Seconds that a request may wait for its first step after its load was received, while the scheduler could run it."""

    def pending(self, account: Account, engine: Engine) -> Pending | None:
        if account.ended_ns is not None:
            return None
        return self._not_run(account, engine) or _not_admitted(account, engine)

    def _not_run(self, account: Account, engine: Engine) -> Pending | None:
        """A request whose load was received and that has not run since."""
        received = account.evidence.received
        if received is None or account.evidence.schedule is not None:
            return None
        allocs = [*account.evidence.allocs.values()][-1:]
        if account.missing is not None and not allocs:
            return None  # the load of an ended request may be received too
        drift = Drift({"where": "after its load"}, [*allocs, received])
        return Pending(received, drift, self.after_s, engine.clocks.spare)


def _not_admitted(account: Account, engine: Engine) -> Pending | None:
    """A request that was looked up and has been given no blocks since."""
    asked = account.evidence.asked
    if asked is None or account.evidence.deferred is not None:
        return None
    drift = Drift({"where": "after its lookup", "computed": asked.computed, "total": asked.total}, [asked])
    return Pending(asked, drift, ADMITTED_AFTER_S, engine.clocks.spare)
