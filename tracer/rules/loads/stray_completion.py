from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvtrail.tracer.events.events import Event, Job, Received, Sent, TransferEnd
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule
from kvtrail.tracer.rules.loads.async_declaration import synchronous_load


@dataclass(slots=True)
class Completions:
    """What was reported as finished of a request.

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
    """A transfer is reported as finished although it is not under way.

    Invariant: each asynchronous load is received once; each delayed free is sent once, after the request's end; each
    numbered transfer ends once.

    A load and a store of one request may end in the same step. A MultiConnector hands every report to all of its
    children, although only one of them waits for it: each records it once, and of one for which none of them waits it is not
    known which child's workers made it. Source: vLLM,
    `Scheduler._update_from_kv_xfer_finished` asserts that it knows the request and frees its blocks; the incidents are
    vLLM #46240 (https://github.com/vllm-project/vllm/issues/46240), #51637
    (https://github.com/vllm-project/vllm/issues/51637), #51595 (https://github.com/vllm-project/vllm/pull/51595), #51786
    (https://github.com/vllm-project/vllm/issues/51786) and #45628 (https://github.com/vllm-project/vllm/pull/45628).
    Needs every event of the request.
    """

    id = "stray-completion"
    severity = Severity.CRASH
    classes = ("C17", "C14")
    hint = (
        "Completions are matched by request id alone: one from before a preemption, or of another child, is taken for it. Or"
        " `request_finished` kept blocks for a store although none was open."
    )

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
            if _may_be_a_siblings(event, account, account.states[Completions].sent_by):
                return None
            return _drift("store", evidence.sent, event)
        if event.job in evidence.jobs:
            return OK
        if (before := account.states[Completions].ended.get(event.job)) is not None:
            return _drift("transfer", before, event)
        return Unknown.UNSEEN

    def template(self, finding: Finding) -> str:
        text = "At {0:epoch} a {what} of the request was reported as finished, and none was under way"
        if finding.numbers["repeated"]:
            text = "At {1:epoch} a {what} was reported as finished that had been reported at {0.label} already"
        if "connectors" in finding.numbers:
            text += "; by which of the {connectors} connectors that were asked about the request, is not known"
        return text + "."


def _drift(what: str, before: Event | None, event: Event) -> Drift:
    return Drift({"what": what, "repeated": before is not None}, [event] if before is None else [before, event])


def _stray_load(event: Received, account: Account) -> Drift:
    """Of a MultiConnector, no child is accused: each was passed the report."""
    drift = _drift("load", account.evidence.received, event)
    if (asked := len(account.evidence.connectors)) < 2:
        return drift
    return replace(drift, numbers={**drift.numbers, "connectors": asked}, connector="")


def _may_be_a_siblings(event: Event, account: Account, reported_by: set[str]) -> bool:
    """Whether a child of a MultiConnector may have been passed the report that another child waited for."""
    return len(account.evidence.connectors) > 1 and event.connector_id not in reported_by
