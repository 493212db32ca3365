from __future__ import annotations

from kvtrail.tracer.events.cache_groups import part_of_block
from kvtrail.tracer.events.events import Schedule
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class WrongResumeOffset(RequestRule[Schedule]):
    def judge(self, event: Schedule, account: Account) -> Judgement:
        evidence = account.evidence
        if evidence.schedule is not None or evidence.load_failed or event.epoch != account.epoch:
            return None
        if account.missing is not None:  # the allocation itself may be lost although the rule applies
            return account.missing
        # of a MultiConnector, the allocation for the chosen child
        alloc = max(evidence.allocs.values(), key=lambda a: a.allocated, default=None)
        lookup = None if alloc is None else account.last_lookup(alloc.connector_id)
        if alloc is None or lookup is None:
            return None
        expected = lookup.computed + alloc.allocated
        if expected > lookup.total:
            return None  # more tokens than the request has: over-report judges it
        # A prompt of one token: none counts as computed after the load.
        asked_again = lookup.request_sequence > alloc.request_sequence
        if expected == alloc.total and (lookup.is_async or asked_again):
            expected -= 1
        if event.computed == expected:
            return OK
        part = part_of_block(event.groups, event.block_size)
        if part > 1 and not alloc.allocated and (event.computed or 0) < expected + part:
            return OK
        numbers = {
            "computed": lookup.computed,
            "allocated": alloc.allocated,
            "expected": expected,
            "begins": event.computed,
        }
        return Drift(numbers, [lookup, alloc, event])
