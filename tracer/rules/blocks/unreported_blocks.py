from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import RequestEnd, Schedule
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account, grows
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import RequestRule

NULL_BLOCK = 0
"""vLLM's placeholder for a block that a sliding window has left behind."""


class UnreportedBlocks(RequestRule[RequestEnd | Schedule]):
    """The scheduler uses blocks that it never announced to the connector.

    Invariant: n + s <= b x |T| for every step, where n is its first token, s the tokens that it runs, b the block size
    and T the block table as allocations and steps announced it; at the end of a request n <= b x |T| for its computed
    tokens n, and the blocks that it holds then are in T.

    A table grows after the allocation, with every step that needs it, so neither its length at the allocation nor the
    blocks added since prove anything; a resumed request begins a new table. Source: vLLM, `KVCacheManager.allocate_slots`
    and `SchedulerOutput`; the incidents are dynamo #8490 (https://github.com/ai-dynamo/dynamo/pull/8490) and LMCache
    #1732 (https://github.com/LMCache/LMCache/issues/1732). Needs the blocks that steps add (level `detailed`), of an
    engine with one KV cache group, and the block size that it really uses, which context parallelism multiplies.
    """

    id = "unreported-blocks"
    severity = Severity.CRASH
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
            return None if table is None else _at_end(event, table, has_groups=evidence.has_groups)
        if event.blocks_ids is None or not event.block_size or event.epoch < account.epoch or evidence.has_groups:
            return None
        first = evidence.schedule is None or event.blocks_whole or event.epoch > account.epoch
        added = event.blocks_ids
        held = [] if first or table is None else table
        length, end = len(held), event.computed + event.scheduled
        if end > length * event.block_size and grows(held, added):
            length += len(added)
        if end <= length * event.block_size:
            return OK
        numbers = {"computed": event.computed, "scheduled": event.scheduled, "end": end, "table_length": length}
        return Drift({**numbers, "room": length * event.block_size}, [event])

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


def _at_end(event: RequestEnd, table: list[int], *, has_groups: bool) -> Judgement:
    if event.blocks_ids:
        untold = sorted(set(event.blocks_ids) - {NULL_BLOCK, *table})
        return Drift({"untold": untold, "table_length": len(table)}, [event]) if untold else OK
    if event.computed is None or not event.block_size or has_groups:
        return None
    room = len(table) * event.block_size
    if event.computed <= room:
        return OK
    return Drift({"computed": event.computed, "table_length": len(table), "room": room}, [event])
