from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.contract import NOT_NEW, breach, new_at_most
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement
from kvtrail.tracer.rules.rule import RequestRule


def earlier_source(lookup: Lookup, account: Account) -> Lookup | None:
    """The earlier lookup whose result `lookup` repeats although vLLM's computed tokens have changed since, or None.

    The repeated result may be the number that was returned, or the length that was matched. If a connector reports that it
    recomputed the answer, an equal number is a coincidence.
    """
    if lookup.cached is False:
        return None
    for earlier in reversed(account.evidence.recent_lookups):
        if earlier.connector_id != lookup.connector_id:
            continue
        moved = earlier.computed != lookup.computed or bool(lookup.cached)
        if moved and lookup.answer in (earlier.answer, earlier.matched):
            return earlier
    return None


class StaleLookup(RequestRule[Lookup]):
    needs_history = False

    def judge(self, event: Lookup, account: Account) -> Judgement:
        answer = event.answer
        if answer is None:
            return None
        if breach(event.total, event.computed, event.matched, answer, event.is_async) is not NOT_NEW:
            return OK if event.matched is not None else None
        source = earlier_source(event, account)
        if source is None and not event.cached:
            return None  # too many tokens, but not stale: over-report judges it
        numbers = {
            "total": event.total,
            "matched": event.matched,
            "computed": event.computed,
            "returned": answer,
            "at_most": new_at_most(event.total, event.computed, event.matched),
            "need_to_load": None if event.matched is None else event.matched - event.computed,
        }
        return Drift(numbers, [event] if source is None else [source, event], healed=event.refused is not None)

    def values(self, finding: Finding) -> dict[str, Any]:
        of, first = finding.numbers, finding.witness[0].numbers
        bound = f"{of['total']} - {of['computed']}"
        if of["matched"] is not None:
            bound = f"max(0, {min(of['matched'], of['total'])} - {of['computed']})"
        answered = first.get("refused", first.get("returned"))
        return {"bound": bound, "answered": answered, "length": of["returned"] == first.get("matched")}
