from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import RequestEnd
from kvtrail.tracer.ledger.account import FULL_OUTPUT, Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import RequestRule


class RefusedHandoff(RequestRule[RequestEnd]):
    only_with = "handoff"

    def judge(self, event: RequestEnd, account: Account) -> Judgement:
        if not event.handoff or not event.has(Capability.HANDS_ON) or event.outcome not in FULL_OUTPUT:
            return None  # an aborted request is not handed on
        lookups = account.evidence.recent_lookups
        of_children = len(account.evidence.connectors) > 1
        if of_children and not any(each.has(Capability.ANSWERS_FOR_CHILDREN) for each in lookups):
            return None  # one of several connectors hands it on, and the answer of each at the end is unknown
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
