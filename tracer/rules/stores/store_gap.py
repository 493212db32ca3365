from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Store, StorePlan
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import Groups, RequestRule


def hole(event: Store | StorePlan, account: Account) -> int | None:
    """Where the hole before a store begins; None if there is no hole."""
    start = event.start
    if start is None or start <= (held := held_until(event.connector_id, account)):
        return None
    return held


def held_until(connector_id: str, account: Account) -> int:
    """End of the prefix that a connector stored in this epoch, or ever found in its store."""
    stored = account.evidence.stored.get(connector_id)
    return max(0 if stored is None else stored.end, account.evidence.matched.get(connector_id, 0))


class StoreGap(RequestRule[Store | StorePlan]):
    """The connector leaves a hole in what it stores of a request.

    Invariant: a store begins at or before max(end of the stores before it, h), where h is the matched prefix: lookups
    find only prefixes, so what lies behind a hole is never found again.

    Chunks that were in the store already count as stored. That the connector reports them, too, has to be declared: recorded
    contents cannot replace it. That nobody was seen to store a block hash says that the store lacks it only of a connector
    that declares that nothing else comes into its store. And whether another request has stored it is known in the order of
    the engine's events, and not after a loss of any: a hole would be a drift or none by the order of arrival, and a loss
    elsewhere would make one. Source: prefix lookup, as all connectors of vLLM have it; the
    incidents are LMCache #3012 (https://github.com/LMCache/LMCache/pull/3012) and vLLM #47235
    (https://github.com/vllm-project/vllm/pull/47235). Needs the capability `reports_all_stores`
    (OffloadConnector, LMCache), and every event of the epoch.
    """

    id = "store-gap"
    severity = Severity.WASTED_WORK
    groups = Groups.FULL
    classes = ("C21",)
    hint = (
        "The store cursor was moved by something that stored nothing: a failed store, a hit counted twice, an eviction."
    )
    explanation = (
        "Up to token {hole_from} the request was stored or found in the store. At {last} the next store begins at {hole_to}:"
        " tokens {hole_from} to {hole_to} are missing, and a lookup by prefix will never get past them."
    )

    def judge(self, event: Store | StorePlan, account: Account) -> Judgement:
        if type(event) is Store and event.role != SCHEDULER:
            return None
        if event.epoch != account.epoch or not event.has(Capability.REPORTS_ALL_STORES):
            return None
        if account.missing is not None:
            return account.missing
        begins = hole(event, account)
        if begins is None:
            return OK
        if account.evidence.repeated_hits.get(event.connector_id, 0) > 1:
            return None  # retried-lookup judges it
        before = account.evidence.stored.get(event.connector_id)
        matched = account.evidence.matched.get(event.connector_id)
        numbers = {"hole_from": begins, "hole_to": event.start, "matched": matched or 0}
        return Drift(numbers, [event] if before is None else [before.last, event])

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"last": finding.witness[-1]}
