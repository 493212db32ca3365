from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Alloc, Event, Failure, Load, Lookup
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import Drift, Finding, Judgement
from kvtrail.tracer.rules.loads.incomplete_load import wanted
from kvtrail.tracer.rules.rule import RequestRule

OF_THE_GUARD = "ContractBreach"
"""The beginning of an error that was raised by `guard: raise`, not by the connector."""
CALLS = {Kind.LOOKUP: "get_num_new_matched_tokens", Kind.ALLOC: "update_state_after_alloc"}


class FailedCall(RequestRule[Failure | Lookup | Alloc]):
    only_with = "error"
    needs_history = False
    yields_to_other_rules = True

    def judge(self, event: Failure | Lookup | Alloc, account: Account) -> Judgement:
        if event.error is None or event.error.startswith(OF_THE_GUARD):
            return None
        call = event.call if type(event) is Failure else CALLS[event.kind]
        numbers: dict[str, Any] = {"call": call, "message": event.error}
        witness = [*_last_events(account), event]
        if (short := _short_load(account)) is not None:
            numbers |= {"expected": wanted(short, account), "loaded": short.count}
            witness.insert(-1, short)
        return Drift(numbers, witness)

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"before": [f"{each.kind} at {each}" for each in finding.witness[:-1]]}


def _short_load(account: Account) -> Load | None:
    """The load of the epoch's last step that moved too few tokens, if this was not reported."""
    evidence = account.evidence
    short = evidence.short or evidence.short_elsewhere
    if short is None or evidence.load_failed or short.epoch != account.epoch or short.count >= wanted(short, account):
        return None
    return short


def _last_events(account: Account) -> list[Event]:
    """The request's last lookup, allocation and step in its epoch."""
    evidence = account.evidence
    lookup = [each for each in [*evidence.recent_lookups][-1:] if each.epoch == account.epoch]
    events: list[Event] = [*lookup, *[*evidence.allocs.values()][-1:]]
    return events if evidence.schedule is None else [*events, evidence.schedule]
