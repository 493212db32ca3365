from __future__ import annotations

from kvtrail.tracer.events.events import LoadPlan, StorePlan
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule


class PlanBlocks(RequestRule[LoadPlan | StorePlan]):
    """The connector plans to copy blocks that are not the request's.

    Invariant: the blocks of a plan for tokens [s, e) are T[s // b : ceil(e / b)], where T is the block table that the
    scheduler published and b the block size; a plan that does not name its tokens names blocks of T only.

    A table grows while a request runs, and is replaced when it is resumed. Source: vLLM, `SchedulerOutput` (new requests
    and resumed ones carry their whole table, others what is added); the incidents are dynamo #8490
    (https://github.com/ai-dynamo/dynamo/pull/8490) and vLLM #52170
    (https://github.com/vllm-project/vllm/issues/52170). Needs block ids (level `detailed`) and a probe that reads plans.
    """

    id = "plan-blocks"
    severity = Severity.WRONG_OUTPUT
    level = Level.DETAILED
    classes = ("C4", "C5")
    needs_history = False
    hint = (
        "The connector keeps a copy of the block table that went astray: appended to after a resumption instead of"
        " replaced, not extended when the request grew, or left from before a preemption."
    )

    def judge(self, event: LoadPlan | StorePlan, account: Account) -> Judgement:
        table, size = account.evidence.blocks, event.block_size
        if not event.blocks_ids:
            return None
        if table is None or not size or event.epoch != account.epoch:
            return account.missing or Unknown.LEVEL
        if event.start is None:
            expected: tuple[int, ...] | None = None
            sound = set(event.blocks_ids) <= set(table)
        else:
            expected = tuple(table[event.start // size : -(-(event.start + event.count) // size)])
            sound = event.blocks_ids == expected
        if sound:
            return OK
        numbers = {
            "start": event.start,
            "count": event.count,
            "planned": list(event.blocks_ids),
            "expected": None if expected is None else list(expected),
            "foreign": sorted(set(event.blocks_ids) - set(table)),
            "table_length": len(table),
        }
        step = account.evidence.schedule
        return Drift(numbers, [event] if step is None else [step, event])

    def explain(self, finding: Finding) -> str:
        plan, n = finding.witness[-1], finding.numbers
        tokens = f"{n['count']} tokens" if n["start"] is None else f"tokens {n['start']} to {n['start'] + n['count']}"
        text = f"At {plan:epoch} the connector told its workers to copy {tokens} in blocks {_some(n['planned'])}."
        if n["foreign"]:
            return f"{text} The request's table of {n['table_length']} blocks does not hold {_some(n['foreign'])}."
        return f"{text} In the scheduler's table these tokens lie in blocks {_some(n['expected'])}."


def _some(blocks: list[int]) -> str:
    shown = ", ".join(map(str, blocks[:6])) or "none at all"
    return f"{shown}, ... ({len(blocks)} in all)" if len(blocks) > 6 else shown
