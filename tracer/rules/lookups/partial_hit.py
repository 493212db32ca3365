from __future__ import annotations

from collections.abc import Sequence

from kvtrail.tracer.events.events import Lookup, RankLookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, combined
from kvtrail.tracer.rules.rule import RequestRule


class PartialHit(RequestRule[Lookup]):
    def judge(self, event: Lookup, account: Account) -> Judgement:
        answers = account.evidence.rank_lookups
        if not answers:
            return None
        return combined(_judge_ranks(event, answers), _judge_groups(event, answers))


def _judge_ranks(event: Lookup, answers: Sequence[RankLookup]) -> Judgement:
    """Whether each rank holds the matched tokens."""
    ranks = {rank.rank: rank for rank in answers if rank.group is None}
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
        "where": "ranks",
        "claimed": claimed,
        "by_rank": {str(r): ranks[r].matched for r in sorted(ranks)},
        "rank": poorest.rank,
    }
    return Drift(numbers, [poorest, event], severity=Severity.CRASH)


def _judge_groups(event: Lookup, answers: Sequence[RankLookup]) -> Judgement:
    """Whether each KV cache group holds an object of the length that the answer promises."""
    groups = {each.group: each for each in answers if each.group is not None and each.boundaries is not None}
    if not event.answer or not groups:
        return None
    claimed = event.computed + event.answer
    joint = set.intersection(*(set(group.boundaries or ()) for group in groups.values()))
    if claimed in joint or (event.matched in joint and claimed == event.total - 1 == (event.matched or 0) - 1):
        return OK
    lacking = next((g for g in groups.values() if claimed not in (g.boundaries or ())), None)
    assert lacking is not None, "a length that is not joint is missing in one of the groups"
    numbers = {
        "where": "groups",
        "claimed": claimed,
        "group": lacking.group,
        "by_group": {str(number): list(groups[number].boundaries or ()) for number in sorted(groups)},
        "joint": max((length for length in joint if length <= claimed), default=0),
    }
    return Drift(numbers, [lacking, event], severity=Severity.WRONG_OUTPUT)
