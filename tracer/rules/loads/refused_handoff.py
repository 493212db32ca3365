"""refused-handoff: a request that was to be handed on releases its blocks at its end."""

from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import RequestEnd
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule

ITS_OWN_END = {"stopped", "length_capped"}
"""The outcomes of a request that ran to its end; an aborted one is not handed on."""


class RefusedHandoff(RequestRule[RequestEnd]):
    """A request that was to be handed on to another engine gave its blocks up when it ended.

    Invariant: if the caller asked for the request to be handed on (`do_remote_decode`), its prompt of P >= b tokens, b the
    block size, was computed, and it was stopped or reached its length, then `request_finished` -> True: the blocks are kept
    until they are sent; and the request still holds b x |B| >= P tokens' worth of blocks B, though it was preempted.

    An aborted request is not handed on. Source: vLLM, `request_finished` of the connectors with the capability `hands_on`;
    the incidents are vLLM #46008 (https://github.com/vllm-project/vllm/pull/46008) and #48141
    (https://github.com/vllm-project/vllm/pull/48141), where the last step's token ends a request that has been preempted
    meanwhile. Under a MultiConnector that is traced, too, `request_finished` is what all of its children answer: one that
    refuses is found where no other one keeps the blocks. Needs that capability (NIXL, Mooncake), one connector in the engine
    or such a MultiConnector, every event of the request, and, of a preempted one, the blocks at its end.
    """

    id = "refused-handoff"
    only_with = "handoff"
    severity = Severity.HANG
    classes = ("C13", "N7")
    hint = "A first token that ends the request is taken for an abort: only an abort must not be handed on."
    explanation = (
        "The request was to be handed on to another engine. At {0} it ended ({outcome}) with {computed} tokens computed, all"
        " {prompt} of its prompt, and the connector released its blocks: the engine that is to continue it waits in vain."
    )

    def judge(self, event: RequestEnd, account: Account) -> Judgement:
        if not event.handoff or not event.has(Capability.HANDS_ON) or event.outcome not in ITS_OWN_END:
            return None
        lookups = account.evidence.recent_lookups
        of_children = len(account.evidence.connectors) > 1
        if of_children and not any(each.has(Capability.ANSWERS_FOR_CHILDREN) for each in lookups):
            return None  # one of several connectors hands it on, and what each of them answered at the end is not known
        if account.prompt is None or event.computed is None or not event.block_size:
            return Unknown.LOST
        size, prompt = event.block_size, account.prompt
        if prompt < size:
            return None
        numbers = {"outcome": event.outcome, "computed": event.computed, "prompt": prompt}
        if event.computed < prompt:
            blocks = event.blocks_ids
            if not (event.epoch and event.output) or blocks is None or len(blocks) * size >= prompt:
                return None
            return Drift({**numbers, "blocks": len(blocks), "output": event.output}, [event])
        return OK if event.free_delayed else Drift(numbers, [event])

    def template(self, finding: Finding) -> str:
        if "blocks" not in finding.numbers:
            return self.explanation
        return (
            "The request was to be handed on to another engine. At {0} it ended ({outcome}) with {output} tokens of output,"
            " so all {prompt} of its prompt had been computed; but it was preempted before its end, and holds {blocks} blocks"
            " and {computed} computed tokens. The engine that is to continue it waits in vain, or reads what is not there."
        )
