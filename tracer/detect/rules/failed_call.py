"""failed-call: the connector raised an exception."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.events import Alloc, Event, Failure, Lookup
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity
from kvtrail.tracer.model.semconv import Kind

OF_THE_GUARD = "ContractBreach"
"""With this an error begins that `guard: raise` raised, and not the connector."""
CALLS = {Kind.LOOKUP: "get_num_new_matched_tokens", Kind.ALLOC: "update_state_after_alloc"}


class FailedCall(RequestRule[Failure | Lookup | Alloc]):
    """A call of the connector raised an exception.

    Invariant: no call of the connector raises, neither one of the scheduler's nor one of a worker's.

    vLLM catches none of them: the engine's process ends, and with it every request. What the guard raises under `raise` is no
    fault of the call, and a load that fails and is reported (`get_block_ids_with_load_errors`, `failed_recving`) is no
    exception. Source: vLLM, `EngineCore.run_engine_core` and `WorkerProc.worker_busy_loop`; the incident is vLLM #56841
    (https://github.com/vllm-project/vllm/pull/56841). Needs the event alone.
    Where another rule has found something in the request, that explains it, and this one is silent.
    """

    id = "failed-call"
    severity = Severity.CRASH
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
        call = event.call if isinstance(event, Failure) else CALLS[event.kind]
        return Drift({"call": call, "message": event.error}, [*_last_events(account), event])

    def explain(self, finding: Finding) -> str:
        *before, last = finding.witness
        n: dict[str, Any] = finding.numbers
        text = f"At {last} `{n['call']}` raised {n['message']!r}."
        if before:
            text += f" The request's last events before it: {', '.join(f'{each.kind} at {each}' for each in before)}."
        return text


def _last_events(account: Account) -> list[Event]:
    """What last happened to the request in its epoch: its lookup, its allocation, and its step."""
    evidence = account.evidence
    lookup = [each for each in [*evidence.recent_lookups][-1:] if each.epoch == account.epoch]
    events: list[Event] = [*lookup, *[*evidence.allocs.values()][-1:]]
    return events if evidence.schedule is None else [*events, evidence.schedule]
