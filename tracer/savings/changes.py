"""Compares two ranges of time: the change of each amount, and the groups of requests that explain it.

An amount is a sum per minute of its range, so that ranges of different lengths can be compared. A group's share is its part
of the change of the whole; the shares of one dimension's groups add up to 1. Look first at the group with the largest share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.savings.cause_sums import causes_of, tenants_of, with_plain
from kvtrail.tracer.savings.minute_sums import SavingsRow

Sums = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount in two ranges, per minute of each.

    Attributes:
        before, after: tokens, requests or seconds.
    """

    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A group of requests, and its part in the change of the whole.

    Attributes:
        dimension: the label by which requests are grouped: `engine`, `model`, `connector`, `tenant`, `prefix` (the beginning
            of the prompt), or `cause` of computed tokens.
        group: the engine's id, the model's name, ...; for a cause, `CAUSE:TIER`.
        amount: its part of the whole.
        share: its change as a share of the whole's; negative if it changed in the opposite direction.
        of_traffic: the part of its change that comes from more or fewer tokens asked for, at its previous rate of reuse. The
            rest comes from a changed reuse. None if the amount is not a part of the tokens asked for.
    """

    dimension: str
    group: str
    amount: Amount
    share: float
    of_traffic: float | None = None


@dataclass(frozen=True, slots=True)
class MeasureChange:
    """The change of one measure, and the groups that explain it, the largest shares first.

    Attributes:
        measure: one of `MEASURES`.
        whole: the amount over all requests.
        of_traffic: as for a group.
        groups: at most `MAX_GROUPS` of a dimension.
    """

    measure: str
    whole: Amount
    of_traffic: float | None
    groups: Sequence[GroupChange]


MAX_GROUPS = 20


def _of(sums: Sums, measure: str) -> int:
    return sums.get(measure, 0)


MEASURES: Mapping[str, Callable[[Sums], float]] = {
    "computed": lambda sums: _of(sums, "asked") - _of(sums, "local") - _of(sums, "taken") + _of(sums, "failed"),
    "asked": lambda sums: _of(sums, "asked"),
    "local": lambda sums: _of(sums, "local"),
    "loaded": lambda sums: _of(sums, "taken") - _of(sums, "failed"),
    "failed": lambda sums: _of(sums, "failed"),
    "waited_s": lambda sums: _of(sums, "waited_ns") / 1e9,
    "postponed_s": lambda sums: _of(sums, "postponed_ns") / 1e9,
    "lookup_s": lambda sums: _of(sums, "lookup_ns") / 1e9,
    "preemptions": lambda sums: _of(sums, "preemptions"),
    "admissions": lambda sums: _of(sums, "admissions"),
}
"""The compared measures, from the sums of a range: tokens, counts, or seconds if the name says so."""
_KNOWN_OF = {"tenant": ("computed", "asked"), "prefix": ("computed", "asked", "local", "loaded")}
"""The measures that are known by a dimension, for dimensions that do not have all measures."""
PARTS_OF_ASKED = frozenset({"computed", "local", "loaded"})
"""Measures that are a part of the tokens asked for, for which traffic and reuse can be distinguished."""


@dataclass(frozen=True, slots=True)
class Side:
    """The sums of one range.

    Attributes:
        rows: its rows.
        minutes: its length.
        prefixes: `asked`, `local` and `taken` tokens of the requests that began in it, by prefix, for some prefixes.
    """

    rows: Sequence[SavingsRow]
    minutes: float
    prefixes: Mapping[str, Sums] = field(default_factory=dict)


def changes(before: Side, after: Side, models: Mapping[str, str]) -> list[MeasureChange]:
    """Each changed measure, with the groups that explain it; `models` has each engine's model."""
    dimensions: dict[str, Callable[[SavingsRow], str]] = {
        "engine": lambda row: row.engine,
        "model": lambda row: models.get(row.engine, ""),
        "connector": lambda row: row.connector,
    }
    groups: dict[str, tuple[Mapping[str, Sums], Mapping[str, Sums]]] = {
        name: (_grouped(before, of), _grouped(after, of)) for name, of in dimensions.items()
    }
    wholes = (_total(before), _total(after))
    groups["tenant"] = _by_tenant(*wholes)
    groups["prefix"] = (before.prefixes, after.prefixes)
    found = []
    for measure, value in MEASURES.items():
        whole, of_traffic = _compared(measure, value, *wholes, before, after)
        if whole.change == 0:
            continue
        parts: list[GroupChange] = []
        for dimension, (earlier, later) in groups.items():
            if measure not in _KNOWN_OF.get(dimension, MEASURES):
                continue
            parts += ranked(
                GroupChange(dimension, name, amount, amount.change / whole.change, of_traffic)
                for name in earlier.keys() | later.keys()
                for amount, of_traffic in [
                    _compared(measure, value, earlier.get(name, {}), later.get(name, {}), before, after)
                ]
            )
        if measure == "computed":
            parts += _by_cause(*wholes, before, after, whole)
        found.append(MeasureChange(measure, whole, of_traffic, sorted(parts, key=lambda each: -abs(each.share))))
    return found


def _by_tenant(earlier: Sums, later: Sums) -> tuple[Mapping[str, Sums], Mapping[str, Sums]]:
    """The tenants of both ranges, if either has any. The plain tenant then counts in both ranges, since it is not new when
    another one appears."""
    if not (tenants_of(earlier) or tenants_of(later)):
        return {}, {}
    before, after = ({name: _as_sums(causes) for name, causes in with_plain(sums).items()} for sums in (earlier, later))
    return before, after


def _by_cause(earlier: Sums, later: Sums, before: Side, after: Side, whole: Amount) -> list[GroupChange]:
    """The changes of computed tokens, by cause."""
    causes = [
        {name: tokens for name, tokens in causes_of(sums).items() if name.split(":")[0] not in REUSED}
        for sums in (earlier, later)
    ]
    amounts = {
        name: Amount(causes[0].get(name, 0) / before.minutes, causes[1].get(name, 0) / after.minutes)
        for name in causes[0].keys() | causes[1].keys()
    }
    return ranked(GroupChange("cause", name, each, each.change / whole.change) for name, each in amounts.items())


def _compared(
    measure: str, value: Callable[[Sums], float], earlier: Sums, later: Sums, before: Side, after: Side
) -> tuple[Amount, float | None]:
    """The amounts of both ranges, and the part of their difference that traffic alone explains."""
    amount = Amount(value(earlier) / before.minutes, value(later) / after.minutes)
    if measure not in PARTS_OF_ASKED:
        return amount, None
    asked, asked_later = _of(earlier, "asked"), _of(later, "asked")
    if not asked:
        return amount, amount.change  # it is new: all of it is traffic
    share = value(earlier) / asked
    return amount, (asked_later / after.minutes - asked / before.minutes) * share


def ranked(groups: Iterable[GroupChange]) -> list[GroupChange]:
    """The groups, largest shares first. Unchanged groups are included: a group that is the only one explains nothing."""
    present = (each for each in groups if each.amount.before or each.amount.after)
    return sorted(present, key=lambda each: (-abs(each.share), each.group))[:MAX_GROUPS]


def _grouped(side: Side, of: Callable[[SavingsRow], str]) -> dict[str, Sums]:
    groups: dict[str, Counter[str]] = {}
    for row in side.rows:
        groups.setdefault(of(row), Counter()).update(row.measures)
    return dict(groups)


def _total(side: Side) -> Sums:
    total: Counter[str] = Counter()
    for row in side.rows:
        total.update(row.measures)
    return total


def _as_sums(causes: Mapping[str, int]) -> Sums:
    """A tenant's tokens by cause, in the form of the sums from which measures are computed."""
    local, loaded = (causes.get(cause, 0) for cause in REUSED)
    return {"asked": sum(causes.values()), "local": local, "taken": loaded}
