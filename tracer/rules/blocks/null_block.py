from __future__ import annotations

from kvtrail.tracer.events.cache_groups import MAMBA, NULL_BLOCK, part_of_block
from kvtrail.tracer.events.events import Alloc, Schedule
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.block_table import BlockTable
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import RequestRule


class NullBlock(RequestRule[Alloc | Schedule]):
    def judge(self, event: Alloc | Schedule, account: Account) -> Judgement:
        if type(event) is Alloc:
            begins = _admitted_at(event, account)
            if begins is None:
                return None
            return _judged(event, BlockTable(event), begins, begins)
        table = _table(event, account)
        if table is None:
            return None
        end = event.computed + event.scheduled - (event.drafted or 0)
        return _judged(
            event, table, event.computed, end, knows_states=event.blocks_whole or account.evidence.schedule is None
        )


def _admitted_at(event: Alloc, account: Account) -> int | None:
    """The length at which an allocation lets its request begin. None if unknown: the allocation answers no lookup, as after
    an asynchronous load; another connector may load; or vLLM's own hit may end within a block."""
    offer = account.evidence.offers.get(event.connector_id)
    if not event.blocks_by_group or event.error is not None or len(account.evidence.connectors) != 1:
        return None
    if offer is None or offer.alloc is not None or offer.lookup.returned is None:
        return None
    if not event.allocated and part_of_block(event.groups, event.block_size) > 1:
        return None
    return offer.lookup.computed + event.allocated


def _table(event: Schedule, account: Account) -> BlockTable | None:
    """The block table with which a step runs; None if it is not to be judged."""
    evidence = account.evidence
    if event.blocks_ids and (event.blocks_whole or evidence.schedule is None):
        return BlockTable(event)
    if evidence.blocks is None or not evidence.load_failed or event.epoch != account.epoch:
        return None
    return evidence.blocks.with_added(event)


def _judged(
    event: Alloc | Schedule, table: BlockTable, begins: int, end: int, *, knows_states: bool = True
) -> Judgement:
    """Whether each group has its blocks from the beginning of a step to its end. A recurrent state moves in its table without
    a record of the step. Its place is known only from a table that was recorded whole."""
    if not 1 < len(table.groups) == len(table.kinds):
        return None
    for number, kind in enumerate(table.kinds):
        size, is_state = table.size_of(number), kind.kind == MAMBA
        if not (size and kind.has_place_for_all) or (is_state and not knows_states):
            continue
        first = table.needed_from(number, begins)
        needed = table.groups[number][first : -(-(begins if is_state else end) // size)]
        if NULL_BLOCK in needed:
            return Drift(
                {
                    "group": number,
                    "kind": kind.kind,
                    "token": (first + needed.index(NULL_BLOCK)) * size,
                    "needed_from": first * size,
                    "begins": begins,
                    "missing": needed.count(NULL_BLOCK),
                },
                [event],
            )
    return OK
