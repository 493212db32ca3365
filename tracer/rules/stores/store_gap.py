from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import RequestEnd, Store, StorePlan
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import RequestRule


def hole(event: Store | StorePlan, account: Account) -> int | None:
    """The first token of the gap before a store; None if there is no gap."""
    start = event.start
    if start is None or start <= (held := held_until(event.connector_id, account)):
        return None
    return held


def held_until(connector_id: str, account: Account) -> int:
    """End of the prefix that a connector stored in this epoch, or ever found in its store."""
    stored = account.evidence.stored.get(connector_id)
    return max(0 if stored is None else stored.end, account.evidence.matched.get(connector_id, 0))


class StoreGap(RequestRule[Store | StorePlan | RequestEnd]):
    def judge(self, event: Store | StorePlan | RequestEnd, account: Account) -> Judgement:
        if type(event) is RequestEnd:
            return _judge_end(event, account)
        if type(event) is Store and event.role != SCHEDULER:
            return None
        if event.epoch != account.epoch or not event.has(Capability.REPORTS_ALL_STORES):
            return None
        if account.missing is not None:
            return account.missing
        begins = hole(event, account)
        if begins is None:
            return OK
        if account.evidence.repeated_hits.get(event.connector_id, 0) > 1:
            return None  # retried-lookup judges it
        before = account.evidence.stored.get(event.connector_id)
        matched = account.evidence.matched.get(event.connector_id)
        numbers = {"where": "between stores", "hole_from": begins, "hole_to": event.start, "matched": matched or 0}
        return Drift(numbers, [event] if before is None else [before.last, event])


def _judge_end(event: RequestEnd, account: Account) -> Judgement:
    """Whether the stores of a request reach its prompt's end, as far as it was computed."""
    step, stored = account.evidence.schedule, account.evidence.stored
    if step is None or not stored:
        return None
    judged = False
    drifts = []
    for connector_id, each in stored.items():  # one end is recorded for all children of a MultiConnector
        store, size = each.last, each.last.chunk_size
        if not size or not store.has(Capability.REPORTS_ALL_STORES):
            continue
        if isinstance(store, StorePlan) and not store.count:
            continue  # the connector reported a full store
        if account.prompt is None:
            return Unknown.UNSEEN
        judged = True
        reached = min(account.prompt, step.computed)
        wanted, held = reached // size * size, held_until(connector_id, account)
        if held < wanted:
            numbers = {
                "where": "at the end",
                "prompt": account.prompt,
                "computed": reached,
                "held": held,
                "wanted": wanted,
            }
            drifts.append(Drift(numbers, [store, step, event], connector=store.connector))
    return tuple(drifts) or (OK if judged else None)
