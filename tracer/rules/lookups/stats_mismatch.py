from __future__ import annotations

from kvtrail.tracer.events.events import Stats
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class StatsMismatch(RequestRule[Stats]):
    needs_history = False

    def judge(self, event: Stats, account: Account) -> Judgement:
        broken = _broken(event, account)
        if broken is None:
            return OK if event.reported is not None else None
        return Drift({**event.numbers(), "broken": broken}, [event])


def _broken(event: Stats, account: Account) -> str | None:
    """The clause that does not hold, in words."""
    total, cached, external = event.total, event.reported, event.from_connector
    if cached is not None and cached < 0:
        return f"{cached} tokens cannot be cached"
    if external is not None and external < 0:
        return f"{external} tokens cannot have come from the connector"
    if cached is not None and external is not None and external > cached:
        return f"{external} of {cached} cached tokens cannot have come from the connector: {cached - external} would be local"
    if cached is not None and total is not None and cached > total:
        return f"{cached} of {total} tokens cannot be cached"
    evidence = account.evidence
    lookup = evidence.recent_lookups[-1] if evidence.recent_lookups else None
    if event.queried is None or lookup is None or account.missing is not None:
        return None
    allocs = evidence.allocs.values()
    if lookup.returned and allocs and not any(alloc.allocated for alloc in allocs):
        if not event.queried:
            return None
        return f"the lookup's answer of {lookup.returned} tokens was discarded, so none were asked for, not {event.queried}"
    asked = lookup.total - lookup.computed
    if event.queried != asked:
        return f"the lookup asked for {lookup.total} - {lookup.computed} = {asked} tokens, not {event.queried}"
    if evidence.stats is not None and evidence.stats.queried and not evidence.load_failed:
        return f"the {event.queried} tokens asked for had been counted before in the same admission"
    return None
