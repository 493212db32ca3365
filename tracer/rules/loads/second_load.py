from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


class SecondLoad(RequestRule[Lookup]):
    """A lookup offers tokens again that the request has received already.

    Invariant: after an asynchronous load of x tokens from c on was received, e = 0 for each lookup with fewer than c + x
    computed tokens, until the request's first step; and, if the tokens were handed on by another engine, after each later
    preemption, too.

    After a load that failed, vLLM asks again, and an answer above 0 is legal; so is one after a preemption from a store,
    which holds its chunks still.

    Source: vLLM, `Scheduler.schedule` asks only for requests without computed tokens, and the connectors that hand on trigger
    one transfer a request; the incidents are vLLM #18232
    (https://github.com/vllm-project/vllm/pull/18232), where another child of a MultiConnector offered the tokens, and #53250
    (https://github.com/vllm-project/vllm/pull/53250). Needs every event of the request, and the capability `receives_once`
    (NIXL, Mooncake, MoRIIO) after a preemption.
    """

    id = "second-load"
    severity = Severity.HANG
    classes = ("C6", "C12")
    hint = (
        "The connector does not note that the hand-off was used (`do_remote_prefill`), or the scheduler has lost the computed"
        " tokens of a load that it waited for. Nobody sends the tokens a second time."
    )

    def judge(self, event: Lookup, account: Account) -> Judgement:
        loads, answer = account.evidence.loaded, event.answer
        if not loads or answer is None:
            return None
        preempted = loads[0].alloc.epoch < event.epoch
        if preempted:  # what another connector holds may be loaded
            loads = tuple(load for load in loads if load.alloc.connector_id == event.connector_id)
            if not loads or not event.has(Capability.RECEIVES_ONCE):
                return None
        elif account.evidence.schedule is not None:
            return None
        load = max(loads, key=lambda each: each.end)
        if answer <= 0 or (not preempted and event.computed >= load.end):
            return OK
        numbers = {
            "received": load.alloc.allocated,
            "computed": event.computed,
            "returned": answer,
            "preempted": preempted,
        }
        return Drift(numbers, [load.alloc, event], healed=event.refused is not None)

    def template(self, finding: Finding) -> str:
        text = "Blocks for {received} tokens were allocated at {0:epoch}, and the tokens were received. "
        if finding.numbers["preempted"]:
            return text + (
                "The request was preempted since, and they are lost: the engine that handed them on has given them up. At"
                " {1:epoch} the connector offers {returned} tokens beyond the {computed} computed ones once more."
            )
        return text + (
            "At {1.label} the request has not run, and the connector offers {returned} tokens beyond the {computed} computed"
            " ones once more."
        )
