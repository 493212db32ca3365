"""What changed for single requests between two ranges of time: how long they waited and lasted, on the mean, and which
group of requests explains how much of it.

The mean over all requests is the sum of what each group adds to it: its own mean, times its share of the requests. So the
shares of a dimension's groups add up to 1, as those of sums do (`changes`), and a group may explain a change because its
requests are slower, or because there are more of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.tracer.ledger.lanes import Lane
from kvtrail.tracer.ledger.phases import Phase
from kvtrail.tracer.model.conditions import UNKNOWN
from kvtrail.tracer.savings.changes import Amount, GroupChange, MeasureChange, ranked

LENGTHS = (1024, 4096, 16_384, 65_536)
"""Where the classes of prompts' lengths end, in tokens."""
_BEFORE_RUN = frozenset({Phase.QUEUED, Phase.LOOKUP, Phase.WAITING, Phase.LOAD, Phase.FAILED})
_FIRST_TOKEN = frozenset({Phase.DECODE, Phase.DONE, Phase.STORE})


@dataclass(frozen=True, slots=True)
class Observed:
    """A request.

    Attributes:
        groups: the group that it belongs to, by dimension.
        seconds: its durations, by measure; without those that are not known.
    """

    groups: Mapping[str, str]
    seconds: Mapping[str, float]


def of_account(account: Mapping[str, Any], model: str) -> Observed:
    """A request by its account as stored: how long it waited for KV (`wait_s`) and, once it has ended, lasted
    (`duration_s`)."""
    seconds = {"wait_s": account["waited_ns"] / 1e9}
    if account["ended_ns"]:
        seconds["duration_s"] = max(0, account["ended_ns"] - account["started_ns"]) / 1e9
    groups = {"engine": account["engine"], "model": model, "connector": account["connector"]}
    prompt = {"prompt": length_class(account["prompt"]), "prefix": account["prefix"] or UNKNOWN}
    return Observed(groups | prompt, seconds)


def of_lane(lane: Lane, model: str) -> Observed:
    """A request by its lane: how long it was until its first step (`queue_s`), and until its prompt was computed
    (`first_token_s`), where that is recorded."""
    seconds: dict[str, float] = {}
    for phase, at_us in zip(lane.changes[::2], lane.changes[1::2], strict=True):
        if phase not in _BEFORE_RUN:
            seconds.setdefault("queue_s", at_us / 1e6)
            if phase in _FIRST_TOKEN:
                seconds.setdefault("first_token_s", at_us / 1e6)
    return Observed({"engine": lane.engine, "model": model, "connector": lane.connector}, seconds)


def length_class(tokens: int | None) -> str:
    """The class of a prompt of this many tokens, such as `1024-4096`; empty where it is not known."""
    if tokens is None:
        return ""
    begin = max((end for end in LENGTHS if end <= tokens), default=0)
    end = next((end for end in LENGTHS if end > tokens), None)
    return f"{begin}-" if end is None else f"{begin}-{end}"


def request_changes(before: Sequence[Observed], after: Sequence[Observed]) -> list[MeasureChange]:
    """Each measure that changed, in seconds for each request, and by whom."""
    found = []
    for measure in dict.fromkeys(name for each in (*before, *after) for name in each.seconds):
        sides = [[each for each in side if measure in each.seconds] for side in (before, after)]
        if not all(sides):
            continue
        whole = Amount(*(sum(each.seconds[measure] for each in side) / len(side) for side in sides))
        if whole.change == 0:
            continue
        groups: list[GroupChange] = []
        for dimension in dict.fromkeys(name for side in sides for each in side for name in each.groups):
            earlier, later = (_means(side, measure, dimension) for side in sides)
            for name in earlier.keys() | later.keys():
                amount = Amount(earlier.get(name, 0.0), later.get(name, 0.0))
                groups.append(GroupChange(dimension, name, amount, amount.change / whole.change))
        found.append(MeasureChange(measure, whole, None, ranked(groups)))
    return found


def _means(side: Sequence[Observed], measure: str, dimension: str) -> dict[str, float]:
    """By group: what it adds to the mean over all requests."""
    sums: dict[str, float] = defaultdict(float)
    for each in side:
        if dimension in each.groups:
            sums[each.groups[dimension]] += each.seconds[measure] / len(side)
    return sums
