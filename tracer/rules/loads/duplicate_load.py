from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Lookup, Received
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules.rule import PairRule, RequestRule


class DuplicateLoad(RequestRule[Lookup]):
    """Finds a lookup that offers KV which its request has already received (`offered again`)."""

    def judge(self, event: Lookup, account: Account) -> Judgement:
        loads, answer = account.evidence.loaded, event.answer
        if not loads or answer is None:
            return None
        preempted = loads[0].alloc.epoch < event.epoch
        if preempted:  # KV of another connector's store may be loaded
            loads = tuple(load for load in loads if load.alloc.connector_id == event.connector_id)
            if not loads or not event.has(Capability.RECEIVES_ONCE):
                return None
        elif account.evidence.schedule is not None:
            return None
        load = max(loads, key=lambda each: each.end)
        if answer <= 0 or (not preempted and event.computed >= load.end):
            return OK
        numbers = {
            "where": "offered again",
            "received": load.alloc.allocated,
            "computed": event.computed,
            "returned": answer,
            "preempted": preempted,
        }
        return Drift(numbers, [load.alloc, event], healed=event.refused is not None, severity=Severity.HANG)


class DuplicateHandoff(PairRule[Received]):
    """Finds two requests that receive the same hand-off (`received twice`)."""

    needs_history = False

    def judge(self, event: Received, engine: Engine) -> Judgement:
        pair = engine.handoffs.taken_by(event)
        if pair is None or not engine.handoffs.receives(event):
            return None
        if not pair.loads:
            return OK
        place, load = next(iter(pair.loads.items()))
        first, second = engine.handoffs.in_order(load, event)
        numbers = {
            "where": "received twice",
            "key": pair.takers[place].handoff_keys[0],
            "other": first.request,
            "taker": first.engine,
        }
        return Drift(numbers, [first, second])
