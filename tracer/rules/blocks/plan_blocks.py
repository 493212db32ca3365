from __future__ import annotations

from kvtrail.tracer.events.cache_groups import MAMBA, groups_of
from kvtrail.tracer.events.events import Event, LoadPlan, StorePlan
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.block_table import BlockTable, blocks_by_group
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule, RequestRule


class PlanBlocks(RequestRule[LoadPlan | StorePlan]):
    """Finds a plan that differs from the block table of its request (`table`)."""

    only_with = "blocks_ids"
    needs_history = False

    def judge(self, event: LoadPlan | StorePlan, account: Account) -> Judgement:
        table = account.evidence.blocks
        if not event.blocks_ids:
            return None
        if table is None or not event.block_size or event.epoch != account.epoch:
            return account.missing or Unknown.LEVEL
        planned = blocks_by_group(event)
        if len(planned) > len(table.groups):
            return Unknown.LEVEL
        recurrent = {n for n, group in enumerate(groups_of(event.groups)) if group.kind == MAMBA}
        for group, blocks in enumerate(planned):
            if type(event) is StorePlan and group in recurrent:
                continue
            expected = _expected(event, table, group, len(blocks))
            moved = table.moved(group, blocks)
            foreign = set(blocks) - set(table.groups[group])
            if moved or (foreign if expected is None else list(blocks) != expected):
                break
        else:
            return OK
        numbers = {
            "where": "table",
            "start": event.start if event.group_starts is None else event.group_starts[group],
            "count": event.count,
            "planned": list(blocks),
            "expected": expected,
            "foreign": sorted(foreign),
            "table_length": len(table.groups[group]),
        }
        if len(table.groups) > 1:
            numbers["group"] = group
            numbers["of_group"] = next((n for n, ids in enumerate(table.groups) if set(blocks) <= set(ids)), None)
        if moved:
            numbers |= {"moved": list(moved), "of_group": min(moved.values())}
        step = account.evidence.schedule
        return Drift(numbers, [event] if step is None else [step, event])


class ReassignedBlocks(EngineRule[LoadPlan | StorePlan]):
    """Finds a plan that names a block which was given to another request since (`reassigned`)."""

    only_with = "blocks_ids"

    def judge(self, event: LoadPlan | StorePlan, engine: Engine) -> Judgement:
        if not event.blocks_ids:
            return None
        table = engine.tables.get(event.request or "")
        if table is None:
            return self._without_blocks(event, engine)
        if not event.blocks_by_group:
            return None
        stale = [
            (group, block, given)
            for group, blocks in enumerate(blocks_by_group(event))
            for block in blocks
            if (given := engine.given.get(block)) is not None
            and given.request != event.request
            and _is_later(given, table.named_by)
            and not (table.is_recurrent(group) and block not in table.groups[group])
        ]
        if not stale:
            return OK
        group, block, given = stale[0]
        numbers = {"where": "reassigned", "block": block, "group": group, "other": given.request, "stale": len(stale)}
        return Drift(numbers, [given, event])

    def _without_blocks(self, event: LoadPlan | StorePlan, engine: Engine) -> Judgement:
        """Judge a plan whose request holds no blocks."""
        left = engine.left.get(event.request or "")
        if left is None:
            return engine.missing if event.request in engine.met else None
        if type(event) is StorePlan and event.chunk_present:
            return OK
        given_since = engine.given_since_left(event)
        stale = {block: given for block, given in given_since.items() if engine.has_run_since(given)}
        if not stale:
            return Unknown.ORDER if given_since and event.job is None else OK
        block, given = next(iter(stale.items()))
        copies = "store" if type(event) is StorePlan else "load"
        numbers = {
            "where": "reassigned",
            "block": block,
            "other": given.request,
            "stale": len(stale),
            "transfer": copies,
        }
        return Drift(numbers, [left, given, event])


def _expected(event: LoadPlan | StorePlan, table: BlockTable, group: int, count: int) -> list[int] | None:
    """The blocks of a group that a plan of `count` blocks should name; None if it does not say which tokens they hold."""
    size, ids = table.size_of(group), table.groups[group]
    if size is None:
        return None
    if event.group_starts is not None:
        first = event.group_starts[group] // size
        return ids[first : first + count]
    if event.start is None or len(table.groups) > 1:
        return None
    return ids[event.start // size : -(-(event.start + event.count) // size)]


def _is_later(given: Event, named: Event) -> bool:
    """Whether a block was allocated in a later step. Within a step no order is known: a block that one request is to compute
    is shared with others at once. A log has no steps."""
    step, since = getattr(given, "scheduler_step", None), getattr(named, "scheduler_step", None)
    return given.sequence > named.sequence if step is None or since is None else bool(step > since)
