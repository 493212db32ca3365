from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


class RankDisagreement(RequestRule[Lookup]):
    """The ranks hold different prefixes, and the answer promises more than the shortest one.

    Invariant: h <= min over ranks of what each rank's store answered.

    Different answers are legal if the smallest is used; ranks that share keys answer once. A lookup that raises over them
    uses none. Source: tensor parallelism:
    every rank loads its part of the same tokens. The incidents are LMCache #1467
    (https://github.com/LMCache/LMCache/issues/1467) and #1426 (https://github.com/LMCache/LMCache/pull/1426). Needs the
    ranks' answers to the lookup, and every event of the request since the lookup before.
    """

    id = "rank-disagreement"
    severity = Severity.CRASH
    classes = ("C11",)
    hint = "Each rank evicts by itself. Take the minimum over the ranks, and pin on all of them."

    def judge(self, event: Lookup, account: Account) -> Judgement:
        if not account.evidence.rank_lookups:
            return None
        ranks = {rank.rank: rank for rank in account.evidence.rank_lookups if rank.group is None}
        if not ranks:
            return None
        claimed = event.matched if event.matched is not None else event.answer and event.computed + event.answer
        poorest = min(ranks.values(), key=lambda rank: rank.matched)
        if event.error is not None and len({rank.matched for rank in ranks.values()}) > 1:
            claimed = None
        elif claimed is None:
            return None
        elif claimed <= poorest.matched:
            return OK
        numbers = {
            "claimed": claimed,
            "by_rank": {str(r): ranks[r].matched for r in sorted(ranks)},
            "rank": poorest.rank,
        }
        return Drift(numbers, [poorest, event])

    def template(self, finding: Finding) -> str:
        if finding.numbers["claimed"] is None:
            return "At {1} the lookup raised an exception: {ranks}."
        return "At {1} the connector claimed {claimed} tokens, but {ranks}."

    def values(self, finding: Finding) -> dict[str, Any]:
        by_rank = finding.numbers["by_rank"]
        return {"ranks": ", ".join(f"rank {rank} held {held}" for rank, held in by_rank.items())}
