from __future__ import annotations

from kvtrail.tracer.events.cache_groups import groups_of
from kvtrail.tracer.events.events import Load, Store
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class BlockShortage(RequestRule[Load | Store]):
    needs_history = False

    def judge(self, event: Load | Store, account: Account) -> Judgement:
        if event.blocks_count is None or not event.block_size or len(groups_of(event.groups)) > 1:
            return None
        if event.count <= event.blocks_count * event.block_size:
            return OK
        numbers = {
            "start": event.start,
            "count": event.count,
            "blocks_count": event.blocks_count,
            "block_size": event.block_size,
            "need_blocks": -(-event.count // event.block_size),
        }
        return Drift(numbers, [event])
