from __future__ import annotations

from kvtrail.tracer.events.cache_groups import MAMBA, groups_of
from kvtrail.tracer.events.events import LoadPlan, StorePlan
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.block_table import BlockTable, blocks_by_group
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import Groups, RequestRule


class PlanBlocks(RequestRule[LoadPlan | StorePlan]):
    """The connector plans to copy blocks that are not the request's.

    Invariant: the blocks of a plan for tokens [s, e) are T[s // b : ceil(e / b)], where T is the block table that the
    scheduler published and b the block size; a plan that does not name its tokens names blocks of T only. With several KV
    cache groups this holds for each, with its own table, block size and first token: the n blocks that a plan names of one
    are T[s // b : s // b + n]. Stores of a recurrent group are not judged: vLLM hands a state over by its exact block, which
    may be a copy that no table has.

    A block that a window has left behind may be given out again, to another group of the same request, too; a plan that names
    it for the window copies what is not the window's. A table grows while a request runs, and is replaced when it is resumed.
    Source: vLLM, `SchedulerOutput` (new requests and resumed ones carry their whole table, others what is added); the
    incidents are dynamo #8490 (https://github.com/ai-dynamo/dynamo/pull/8490) and vLLM #52170
    (https://github.com/vllm-project/vllm/issues/52170). Needs block ids (level `detailed`) and a probe that reads plans.
    """

    id = "plan-blocks"
    only_with = "blocks_ids"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C4", "C5")
    needs_history = False
    hint = (
        "The connector keeps a stale copy of the block table: appended to after a resumption instead of"
        " replaced, not extended when the request grew, or left from before a preemption."
    )

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
            if isinstance(event, StorePlan) and group in recurrent:
                continue
            expected = _expected(event, table, group, len(blocks))
            moved = table.moved(group, blocks)
            foreign = set(blocks) - set(table.groups[group])
            if moved or (foreign if expected is None else list(blocks) != expected):
                break
        else:
            return OK
        numbers = {
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

    def explain(self, finding: Finding) -> str:
        plan, n = finding.witness[-1], finding.numbers
        tokens = f"{n['count']} tokens" if n["start"] is None else f"tokens {n['start']} to {n['start'] + n['count']}"
        group = f" of KV cache group {n['group']}" if "group" in n else ""
        named = f"blocks {_some(n['planned'])}{group}"
        text = f"At {plan:epoch} the connector instructed its workers to copy {tokens} in {named}."
        if "moved" in n:
            moved = f"Of these, {_some(n['moved'])} are of group {n['of_group']} now"
            return f"{text} {moved}: they were given back, and then out again."
        if n["foreign"] and n.get("of_group") is not None:
            return f"{text} In the request's tables these are blocks of group {n['of_group']}."
        if n["foreign"]:
            return f"{text} The request's table of {n['table_length']} blocks does not hold {_some(n['foreign'])}."
        return f"{text} In the scheduler's table these tokens lie in blocks {_some(n['expected'])}."


def _expected(event: LoadPlan | StorePlan, table: BlockTable, group: int, count: int) -> list[int] | None:
    """The blocks of a group that a plan of `count` blocks should name; None where it does not say which tokens they hold."""
    size, ids = table.size_of(group), table.groups[group]
    if size is None:
        return None
    if event.group_starts is not None:
        first = event.group_starts[group] // size
        return ids[first : first + count]
    if event.start is None or len(table.groups) > 1:
        return None
    return ids[event.start // size : -(-(event.start + event.count) // size)]


def _some(blocks: list[int]) -> str:
    shown = ", ".join(map(str, blocks[:6])) or "none at all"
    return f"{shown}, ... ({len(blocks)} in all)" if len(blocks) > 6 else shown
