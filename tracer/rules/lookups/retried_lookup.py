from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Store, StorePlan
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import RequestRule
from kvtrail.tracer.rules.stores.store_gap import hole


class RetriedLookup(RequestRule[Store | StorePlan]):
    """A repeated lookup changed what the connector stores.

    Invariant: after k lookups and one allocation the connector's state is that after one lookup: the first store of the
    epoch begins at or before max(h, c), not at a multiple of it.

    Asking many times is legal: vLLM asks again in every pass in which no blocks could be allocated. Source: vLLM,
    `Scheduler.schedule`; the incident is LMCache #4508 (https://github.com/LMCache/LMCache/issues/4508), where two hits
    of 512 moved the store's watermark to 1024. Needs the capability `reports_all_stores`, for the
    reasons that `store-gap` gives, and every event of the epoch.
    """

    id = "retried-lookup"
    severity = Severity.WASTED_WORK
    classes = ("C6",)
    hint = "The lookup adds to a counter. Set it at the allocation instead, or set it to a value rather than add to it."
    explanation = (
        "The lookup was asked {asked} times before blocks were allocated, {hits}. At {last} the"
        " store begins at {begins}, though only {held} tokens are held: every repetition has moved the beginning."
    )

    def judge(self, event: Store | StorePlan, account: Account) -> Judgement:
        if type(event) is Store and event.role != SCHEDULER:
            return None
        asked = account.evidence.repeated_hits.get(event.connector_id, 0)
        if asked < 2 or event.epoch != account.epoch or not event.has(Capability.REPORTS_ALL_STORES):
            return None
        begins = hole(event, account)
        if begins is None:
            return OK
        lookup = account.last_lookup(event.connector_id)
        matched = None if lookup is None else lookup.matched
        numbers = {"asked": asked, "matched": matched, "begins": event.start, "held": begins}
        return Drift(numbers, [event] if lookup is None else [lookup, event])

    def values(self, finding: Finding) -> dict[str, Any]:
        matched = finding.numbers["matched"]
        hits = "each time with a hit" if matched is None else f"and matched {matched} tokens each time"
        return {"last": finding.witness[-1], "hits": hits}
