from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.detect.rules.store_gap import hole
from kvtrail.tracer.model.capabilities import Capability
from kvtrail.tracer.model.events import Store, StorePlan
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


class RetriedLookup(RequestRule[Store | StorePlan]):
    """A lookup that was asked again changed what the connector stores.

    Invariant: after k lookups and one allocation the connector's state is that after one lookup: the first store of the
    epoch begins at or before max(h, c), not at a multiple of it.

    Asking many times is legal: vLLM asks again in every pass in which no blocks could be allocated. Source: vLLM,
    `Scheduler.schedule`; the incident is LMCache #4508 (https://github.com/LMCache/LMCache/issues/4508), where two hits of
    512 moved the store's watermark to 1024. Needs a connector that tells what it stores and what was there already, and
    every event of the epoch.
    """

    id = "retried-lookup"
    severity = Severity.WASTED_WORK
    classes = ("C6",)
    kinds = frozenset({Kind.STORE_PLAN, Kind.STORE})
    hint = "The lookup adds to a counter. Set it at the allocation instead, or set it to a value rather than add to it."

    def judge(self, event: Store | StorePlan, account: Account) -> Judgement:
        if isinstance(event, Store) and event.role != "scheduler":
            return None
        asked = account.evidence.repeated_hits
        if asked < 2 or event.epoch != account.epoch or not event.has(Capability.REPORTS_ALL_STORES):
            return None
        if not account.complete:
            return Verdict.UNKNOWN
        begins = hole(event, account)
        if begins is None:
            return Verdict.OK
        lookups = [lookup for lookup in account.evidence.recent_lookups if lookup.epoch == event.epoch][-1:]
        return Drift(
            {"asked": asked, "matched": account.matched, "begins": event.start, "held": begins}, [*lookups, event]
        )

    def explain(self, finding: Finding) -> str:
        store, n = finding.witness[-1], finding.numbers
        return (
            f"The lookup was asked {n['asked']} times before blocks were allocated, and matched {n['matched']} tokens each"
            f" time. At {store.label} ({clock(store.at_ns)}) the store begins at {n['begins']}, though only"
            f" {n['held']} tokens are held: every repetition has moved the beginning."
        )
