from __future__ import annotations

from kvtrail.tracer.events.cache_groups import part_of_block
from kvtrail.tracer.events.events import LoadPlan
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules.rule import RequestRule


class LoadRange(RequestRule[LoadPlan]):
    def judge(self, event: LoadPlan, account: Account) -> Judgement:
        alloc = account.evidence.allocs.get(event.connector_id)
        if alloc is None or event.epoch != account.epoch:
            return Unknown.UNSEEN
        if not alloc.allocated:
            nothing = {"where": "nothing allocated", "allocated": 0, "count": event.count}
            return Drift(nothing, [alloc, event], severity=Severity.CRASH)
        if event.start is None and event.chunk_keys is None:
            return OK
        lookup = account.last_lookup(event.connector_id)
        if lookup is None:
            return Unknown.UNSEEN
        end, most = (event.start or 0) + event.count, lookup.computed + alloc.allocated
        numbers = {
            "where": "beyond the allocation",
            "computed": lookup.computed,
            "allocated": alloc.allocated,
            "end": end,
            "at_most": most,
        }
        size = part_of_block(event.groups, event.block_size)
        witness = [lookup, alloc, event]
        if event.start is not None and end > max(most + (most + 1 == lookup.total), -(-most // size) * size):
            return Drift(numbers, witness, severity=Severity.WRONG_OUTPUT)
        claimed = lookup.chunk_keys
        unclaimed = [] if claimed is None else [key for key in event.chunk_keys or () if key not in claimed]
        if unclaimed:
            numbers["unclaimed"] = unclaimed
            return Drift(numbers, witness, severity=Severity.WRONG_OUTPUT)
        return OK
