from __future__ import annotations

from kvtrail.tracer.events.contract import NOTHING_TO_RUN, breach
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class NoTokenLeft(RequestRule[Lookup]):
    needs_history = False

    def judge(self, event: Lookup, account: Account) -> Judgement:
        answer = event.answer
        if not answer:
            return None
        broken = breach(event.total, event.computed, event.matched, answer, event.is_async)
        if broken is not NOTHING_TO_RUN:
            return OK if broken is None else None
        numbers = {"total": event.total, "computed": event.computed, "returned": answer}
        return Drift(numbers, [event], healed=event.refused is not None)
