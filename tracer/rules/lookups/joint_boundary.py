"""joint-boundary: an answer ends where a group holds no object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.events.events import Lookup, RankLookup
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import Groups, RequestRule


class JointBoundary(RequestRule[Lookup]):
    """A lookup's answer ends where not every KV cache group holds an object.

    Invariant: c + e is, for every group, one of the lengths at which the group holds an object, where e > 0 is the answer and
    c the computed tokens.

    The smallest of the groups' longest matches is not enough: a sliding window or a recurrent state is held at some lengths
    only. A draft model's cache and another tier are groups, too. Source: every group loads its part of the same prefix; the
    incident is vLLM #50359 (https://github.com/vllm-project/vllm/pull/50359). Needs the groups' answers to the lookup with
    the lengths at which they hold objects, and every event of the request since the lookup before.
    """

    id = "joint-boundary"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    classes = ("C5", "N2")
    hint = (
        "Take the largest length that all groups have, not the smallest of their longest matches, and look again after each"
        " cut."
    )

    def judge(self, event: Lookup, account: Account) -> Judgement:
        if not account.evidence.rank_lookups or not event.answer:
            return None
        groups = _groups(account.evidence.rank_lookups)
        if not groups:
            return None
        claimed = event.computed + event.answer
        joint = set.intersection(*(set(group.boundaries or ()) for group in groups.values()))
        if claimed in joint or (event.matched in joint and claimed == event.total - 1 == (event.matched or 0) - 1):
            return OK
        lacking = next((g for g in groups.values() if claimed not in (g.boundaries or ())), None)
        assert lacking is not None, "a length that is not joint is missing in one of the groups"
        numbers = {
            "claimed": claimed,
            "group": lacking.group,
            "by_group": {str(number): list(groups[number].boundaries or ()) for number in sorted(groups)},
            "joint": max((length for length in joint if length <= claimed), default=0),
        }
        return Drift(numbers, [lacking, event])

    def explain(self, finding: Finding) -> str:
        lookup, n = finding.witness[-1], finding.numbers
        return (
            f"At {lookup} the answer promises the first {n['claimed']} tokens. Of these, {self._held(n)}. Group {n['group']}"
            f" holds no object that ends at {n['claimed']}; the longest prefix that all of them hold has {n['joint']} tokens."
        )

    @staticmethod
    def _held(numbers: dict[str, Any]) -> str:
        return "; ".join(
            f"group {number} holds objects up to {', '.join(map(str, lengths)) or 'none'}"
            for number, lengths in numbers["by_group"].items()
        )


def _groups(answers: Sequence[RankLookup]) -> dict[int, RankLookup]:
    """The groups' answers to the lookup that comes, by number."""
    return {each.group: each for each in answers if each.group is not None and each.boundaries is not None}
