from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.capabilities import Capability
from kvtrail.tracer.model.events import Store, StorePlan
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


def hole(event: Store | StorePlan, account: Account) -> int | None:
    """Where the hole before a store begins; None if there is none."""
    start = event.start
    if start is None or start <= account.evidence.stored_end or start <= account.longest_match:
        return None
    return held_until(account)


def held_until(account: Account) -> int:
    """End of the prefix that was stored in this epoch, or was ever found in the store."""
    return max(account.evidence.stored_end, account.longest_match)


class StoreGap(RequestRule[Store | StorePlan]):
    """The connector leaves a hole in what it stores of a request.

    Invariant: a store begins at or before max(end of the stores before it, h), where h is the matched prefix: lookups find
    prefixes only, so what lies behind a hole is never found again.

    Chunks that were in the store already count as stored. Source: prefix lookup, as all connectors of vLLM have it; the
    incidents are LMCache #3012 (https://github.com/LMCache/LMCache/pull/3012) and vLLM #47235
    (https://github.com/vllm-project/vllm/pull/47235). Needs a connector that tells what it stores and what was there
    already (OffloadConnector, LMCache), and every event of the epoch.
    """

    id = "store-gap"
    severity = Severity.WASTED_WORK
    classes = ("C21",)
    kinds = frozenset({Kind.STORE_PLAN, Kind.STORE})
    hint = (
        "The store cursor was moved by something that stored nothing: a failed store, a hit counted twice, an eviction."
    )

    def judge(self, event: Store | StorePlan, account: Account) -> Judgement:
        if isinstance(event, Store) and event.role != "scheduler":
            return None
        if event.epoch != account.epoch or not event.has(Capability.REPORTS_ALL_STORES):
            return None
        if not account.complete:
            return Verdict.UNKNOWN
        begins = hole(event, account)
        if begins is None:
            return Verdict.OK
        if account.evidence.repeated_hits > 1:
            return None  # retried-lookup tells it
        before = account.evidence.store
        numbers = {"hole_from": begins, "hole_to": event.start, "matched": account.longest_match}
        return Drift(numbers, [event] if before is None else [before, event])

    def explain(self, finding: Finding) -> str:
        store, n = finding.witness[-1], finding.numbers
        return (
            f"Up to token {n['hole_from']} the request was stored or found in the store. At {store.label}"
            f" ({clock(store.at_ns)}) the next store begins at {n['hole_to']}: tokens {n['hole_from']} to {n['hole_to']}"
            " are missing, and a lookup by prefix will never get past them."
        )
