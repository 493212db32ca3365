from __future__ import annotations

from kvtrail.tracer.events.cache_groups import NULL_BLOCK
from kvtrail.tracer.events.events import StorePlan
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.block_table import BlockTable, blocks_by_group
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class StateBoundary(RequestRule[StorePlan]):
    only_with = "blocks_ids"

    def judge(self, event: StorePlan, account: Account) -> Judgement:
        table = account.evidence.blocks
        if event.group_starts is None or event.blocks_by_group is None or event.chunk_present or table is None:
            return None
        judged = None
        for group, blocks in enumerate(blocks_by_group(event)):
            if not blocks or group >= len(table.kinds) or not table.kinds[group].has_states_at_ends_alone:
                continue
            judged = OK
            if wrong := _wrong(event, account, table, group):
                return Drift(wrong, [event])
        return judged


def _wrong(event: StorePlan, account: Account, table: BlockTable, group: int) -> dict[str, int] | None:
    """The first block of a group that holds no state of its length."""
    size, starts = table.size_of(group), event.group_starts
    if not size or starts is None or event.epoch != account.epoch:
        return None
    steps = account.evidence.steps
    ends = {length for step in steps for length in step}
    for place, block in enumerate(blocks_by_group(event)[group], starts[group] // size):
        numbers = {"group": group, "boundary": (place + 1) * size, "block": block}
        if block == NULL_BLOCK:
            return numbers
        boundary = numbers["boundary"]
        for begins, end in steps if boundary not in ends else ():
            if begins < boundary < end:
                return {**numbers, "begins": begins, "end": end}
    return None
