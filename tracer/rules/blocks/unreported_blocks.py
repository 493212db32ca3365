from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.cache_groups import NULL_BLOCK
from kvtrail.tracer.events.events import RequestEnd, Schedule
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.block_table import BlockTable, Room
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import Groups, RequestRule


class UnreportedBlocks(RequestRule[RequestEnd | Schedule]):
    """The scheduler uses blocks that it never announced to the connector.

    Invariant: n + s <= b x |T| for every step, where n is its first token, s the tokens that it runs, b the block size
    and T the block table as allocations and steps announced it; at the end of a request n <= b x |T| for its computed
    tokens n, and the blocks that it holds then are in T.

    A table grows after the allocation, with every step that needs it, so neither its length at the allocation nor the
    blocks added since prove anything; a resumed request begins a new table. With several KV cache groups this holds for each,
    since a table has a place for what a window leaves out, too. Source: vLLM, `KVCacheManager.allocate_slots` and
    `SchedulerOutput`; the incidents are dynamo #8490 (https://github.com/ai-dynamo/dynamo/pull/8490) and LMCache
    #1732 (https://github.com/LMCache/LMCache/issues/1732). Needs the blocks that steps add (level `detailed`), and
    the block sizes that the engine really uses, which context parallelism multiplies.
    """

    id = "unreported-blocks"
    severity = Severity.CRASH
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C4", "C5")
    hint = (
        "A block that was added in a decode step is missing from the scheduler's output, or the connector assumes"
        " another block size than the scheduler."
    )

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

    def template(self, finding: Finding) -> str:
        if "untold" in finding.numbers:
            return (
                "At {0} the request ended with blocks that were never announced to the connector: {blocks}. The announced"
                " table has {table_length}."
            )
        if "scheduled" not in finding.numbers:
            return (
                "At {0} the request ended with {computed} computed tokens. The blocks that were announced to the"
                " connector, {table_length} in all, hold {room}."
            )
        return (
            "The step at {0} begins at {computed} and runs {scheduled} tokens, up to {end}. The blocks that were announced"
            " to the connector, {table_length} in all, hold {room}."
        )

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"blocks": ", ".join(map(str, finding.numbers.get("untold", ())[:6]))}


def _at_end(event: RequestEnd, table: BlockTable) -> Judgement:
    if event.blocks_ids:
        unreported = sorted(set(event.blocks_ids) - {NULL_BLOCK, *table})
        return Drift({"untold": unreported, "table_length": sum(map(len, table.groups))}, [event]) if unreported else OK
    if event.computed is None or not event.block_size:
        return None
    lacking = table.lacks(event.computed)
    return OK if lacking is None else Drift({"computed": event.computed, **_too_short(lacking)}, [event])


def _too_short(lacking: Room) -> dict[str, int]:
    numbers = {"table_length": lacking.blocks, "room": lacking.tokens}
    return numbers if lacking.group is None else {**numbers, "group": lacking.group}
