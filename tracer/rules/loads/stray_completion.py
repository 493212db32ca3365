from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvtrail.tracer.events.events import Event, Job, Received, Sent, TransferEnd
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.loads.async_declaration import synchronous_load
from kvtrail.tracer.rules.rule import RequestRule


@dataclass(slots=True)
class Completions:
    """The reported completions of a request's transfers.

    Attributes:
        sent_by: the connectors that reported the delayed blocks as sent.
        ended: the ends of transfers with a number.
    """

    sent_by: set[str] = field(default_factory=set)
    ended: dict[Job, TransferEnd] = field(default_factory=dict)

    def _enter_sent(self, event: Sent, account: Account) -> None:
        self.sent_by.add(event.connector_id)

    def _enter_transfer_end(self, event: TransferEnd, account: Account) -> None:
        self.ended[event.job] = event


class StrayCompletion(RequestRule[Received | Sent | TransferEnd]):
    State = Completions

    def judge(self, event: Received | Sent | TransferEnd, account: Account) -> Judgement:
        if account.missing is not None:
            return account.missing
        evidence = account.evidence
        if type(event) is Received:
            if evidence.loading is not None:
                return OK
            if synchronous_load(account) is not None or account.repeats_report(event):
                return None  # async-declaration judges it; or another child has recorded this report
            return _stray_load(event, account)
        if type(event) is Sent:
            if evidence.end is not None or (evidence.freed is not None and evidence.sent is None):
                return OK  # a worker may have reported before that the blocks were freed
            reported_by = account.states[Completions].sent_by
            if len(account.evidence.connectors) > 1 and event.connector_id not in reported_by:
                return None  # another child of the MultiConnector may have waited for the report
            return _drift("store", evidence.sent, event)
        if event.job in evidence.jobs:
            return OK
        if (before := account.states[Completions].ended.get(event.job)) is not None:
            return _drift("transfer", before, event)
        return Unknown.UNSEEN


def _drift(what: str, before: Event | None, event: Event) -> Drift:
    return Drift({"what": what, "repeated": before is not None}, [event] if before is None else [before, event])


def _stray_load(event: Received, account: Account) -> Drift:
    """The drift of a load. With a MultiConnector it names no child, since each child got the report."""
    drift = _drift("load", account.evidence.received, event)
    if (asked := len(account.evidence.connectors)) < 2:
        return drift
    return replace(drift, numbers={**drift.numbers, "connectors": asked}, connector="")
