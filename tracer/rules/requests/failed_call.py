"""failed-call: the connector raised an exception."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Alloc, Event, Failure, Load, Lookup
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import KnownBy, RequestRule
from kvtrail.tracer.rules.loads.short_load import wanted

OF_THE_GUARD = "ContractBreach"
"""With this an error begins that `guard: raise` raised, and not the connector."""
CALLS = {Kind.LOOKUP: "get_num_new_matched_tokens", Kind.ALLOC: "update_state_after_alloc"}


class FailedCall(RequestRule[Failure | Lookup | Alloc]):
    """A call of the connector raised an exception.

    Invariant: no call of the connector raises, neither one of the scheduler's nor one of a worker's.

    vLLM catches none of them: the engine's process ends, and with it every request. What the guard raises under `raise` is no
    fault of the call, and a load that fails and is reported (`get_block_ids_with_load_errors`, `failed_recving`) is no
    exception. A load of the same step that brought too little is cited, since it could no longer be reported. Source: vLLM,
    `EngineCore.run_engine_core` and `WorkerProc.worker_busy_loop`; the incidents are vLLM #56841
    (https://github.com/vllm-project/vllm/pull/56841) and LMCache #4133 (https://github.com/LMCache/LMCache/issues/4133).
    Needs the event alone. Where another rule has found something in the request, that explains it, and this one is silent.
    """

    id = "failed-call"
    only_with = "error"
    severity = Severity.CRASH
    known_by = KnownBy.EXCEPTION
    classes = ("C1", "C4", "C7", "C17")
    hint = (
        "The exception is where a contradiction came to light, not always where it began: look at the request's other"
        " findings first, then at its last events."
    )
    needs_history = False
    steps_back = True

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

    def explain(self, finding: Finding) -> str:
        *before, last = finding.witness
        n: dict[str, Any] = finding.numbers
        about = f", called for request {finding.request}" if finding.request else ""
        text = f"At {last} `{n['call']}` raised {n['message']!r}{about}."
        short = before.pop() if "expected" in n else None
        if before:
            text += f" The request's last events before it: {', '.join(f'{each.kind} at {each}' for each in before)}."
        if short is not None:
            text += f" Before it, the load at {short} had brought {n['loaded']} of {n['expected']} tokens."
        return text


def _short_load(account: Account) -> Load | None:
    """The load of the epoch's last step that brought too little, if it was not reported."""
    evidence = account.evidence
    short = evidence.short or evidence.short_elsewhere
    if short is None or evidence.load_failed or short.epoch != account.epoch or short.count >= wanted(short, account):
        return None
    return short


def _last_events(account: Account) -> list[Event]:
    """What last happened to the request in its epoch: its lookup, its allocation, and its step."""
    evidence = account.evidence
    lookup = [each for each in [*evidence.recent_lookups][-1:] if each.epoch == account.epoch]
    events: list[Event] = [*lookup, *[*evidence.allocs.values()][-1:]]
    return events if evidence.schedule is None else [*events, evidence.schedule]
