from __future__ import annotations

from kvtrail.tracer.events.events import Event, Schedule, StorePlan
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import RequestRule


class StoreUncomputed(RequestRule[StorePlan]):
    needs_history = False

    def judge(self, event: StorePlan, account: Account) -> Judgement:
        if event.start is None or event.chunk_present:
            return None
        if event.scheduled is None and account.evidence.schedule is None:
            return _before_the_first_step(event, account)
        run: StorePlan | Schedule | Unknown = event if event.scheduled is not None else _step(event, account)
        if not isinstance(run, Event):
            return run
        end, drafted = event.start + event.count, run.drafted or 0
        computed, scheduled = run.computed or 0, run.scheduled or 0
        most = computed + scheduled - drafted
        if end <= most:
            return OK
        numbers = {"end": end, "computed": computed, "scheduled": scheduled, "drafted": drafted, "at_most": most}
        return Drift(numbers, [event] if run is event else [run, event])


def _step(event: StorePlan, account: Account) -> Schedule | Unknown:
    """The step of a plan that does not include its step's numbers."""
    step = account.evidence.schedule
    if not account.complete:
        return Unknown.LOST
    if step is None or step.scheduler_tokens is not None or event.epoch != account.epoch:
        return Unknown.LEVEL  # not every step is recorded
    return Unknown.LEVEL if step.blocks_ids is None and step.drafted is None else step


def _before_the_first_step(event: StorePlan, account: Account) -> Judgement:
    """Judge a store before the first step. Only the tokens that were computed or loaded at the admission exist."""
    if not account.complete:
        return Unknown.LOST
    # of a MultiConnector, the allocation for the chosen child
    alloc = max(account.evidence.allocs.values(), key=lambda each: each.allocated, default=None)
    lookup = None if alloc is None else account.last_lookup(alloc.connector_id)
    if alloc is None or lookup is None or event.start is None or event.epoch != account.epoch:
        return Unknown.LEVEL
    end, most = event.start + event.count, lookup.computed + alloc.allocated
    if end <= most:
        return OK
    numbers = {"end": end, "computed": lookup.computed, "allocated": alloc.allocated, "at_most": most}
    return Drift(numbers, [lookup, alloc, event])
