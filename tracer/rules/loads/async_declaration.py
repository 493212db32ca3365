from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, Lookup, Received, Schedule
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


def synchronous_load(account: Account) -> Alloc | None:
    """The epoch's allocation for a load that was declared synchronous, if there is one and no other load. None under a
    MultiConnector, which passes each report to all of its children, so the child at fault is unknown."""
    if len(account.evidence.connectors) > 1:
        return None
    taken = [alloc for alloc in account.evidence.allocs.values() if alloc.allocated]
    if account.evidence.loading is not None or account.evidence.received is not None or len(taken) != 1:
        return None
    lookup = account.last_lookup(taken[0].connector_id)
    return taken[0] if lookup is not None and not lookup.is_async and lookup.returned else None


class AsyncDeclaration(RequestRule[Lookup | Received | Schedule]):
    needs_history = False

    def judge(self, event: Lookup | Received | Schedule, account: Account) -> Judgement:
        if type(event) is Lookup:
            if not event.is_async or event.returned is None:
                return None
            return OK if event.answer else Drift({"returned": 0, "async": True}, [event])
        if type(event) is Received:
            if account.missing is not None:
                return account.missing
            alloc = synchronous_load(account)
            if alloc is None:
                return None
            return Drift({"allocated": alloc.allocated, "async": False}, [alloc, event], connector=alloc.connector)
        loading = account.evidence.loading
        if loading is None or event.epoch != account.epoch or account.evidence.load_failed:
            return None
        if account.missing is not None:
            return account.missing
        return Drift({"allocated": loading.allocated, "begins": event.computed}, [loading, event])
