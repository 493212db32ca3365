from __future__ import annotations

from kvtrail.tracer.events.events import Schedule
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class EarlyDrafts(RequestRule[Schedule]):
    def judge(self, event: Schedule, account: Account) -> Judgement:
        if not event.drafted or event.epoch or account.prompt is None or account.evidence.failed_ever:
            return None
        computes = event.scheduled - event.drafted
        if event.computed >= account.prompt or computes == 1:
            return OK
        numbers = {
            "begins": event.computed,
            "prompt": account.prompt,
            "computes": computes,
            "drafted": event.drafted,
            "end": event.computed + event.scheduled,
        }
        return Drift(numbers, [event])
