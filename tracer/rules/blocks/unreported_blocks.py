from __future__ import annotations

from kvtrail.tracer.events.cache_groups import NULL_BLOCK
from kvtrail.tracer.events.events import RequestEnd, Schedule
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.block_table import BlockTable, Room
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class UnreportedBlocks(RequestRule[RequestEnd | Schedule]):
    def judge(self, event: RequestEnd | Schedule, account: Account) -> Judgement:
        evidence = account.evidence
        table = evidence.blocks
        if type(event) is RequestEnd:
            return None if table is None else _at_end(event, table)
        if event.blocks_ids is None or not event.block_size or event.epoch < account.epoch:
            return None
        end = event.computed + event.scheduled
        if evidence.schedule is None or event.blocks_whole or event.epoch > account.epoch or table is None:
            lacking = BlockTable(event).lacks(end)
        elif lacking := table.lacks(end):
            lacking = table.with_added(event).lacks(end)
        if lacking is None:
            return OK
        numbers = {"computed": event.computed, "scheduled": event.scheduled, "end": end}
        return Drift({**numbers, **_too_short(lacking)}, [event])


def _at_end(event: RequestEnd, table: BlockTable) -> Judgement:
    if event.blocks_ids:
        unreported = sorted(set(event.blocks_ids) - {NULL_BLOCK, *table})
        return (
            Drift({"unreported": unreported, "table_length": sum(map(len, table.groups))}, [event])
            if unreported
            else OK
        )
    if event.computed is None or not event.block_size:
        return None
    lacking = table.lacks(event.computed)
    return OK if lacking is None else Drift({"computed": event.computed, **_too_short(lacking)}, [event])


def _too_short(lacking: Room) -> dict[str, int]:
    numbers = {"table_length": lacking.blocks, "room": lacking.tokens}
    return numbers if lacking.group is None else {**numbers, "group": lacking.group}
