"""Judges each requirement by the results of a session.

A judge of a session is named by a rule's id, by a rule and one of the places where it judges (`byte-drift/early`), or by one
of `OTHERS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from kvtrail.connector.simulate.check import features
from kvtrail.connector.simulate.check.coverage import POINTS, RunCoverage, reached
from kvtrail.connector.simulate.check.features import Feature
from kvtrail.connector.simulate.check.session import Checked, Found
from kvtrail.connector.simulate.conformance.requirements import REQUIREMENTS, Level, Requirement
from kvtrail.connector.simulate.judges.failure import (
    BYTES,
    CRASH,
    EVENTS,
    HANG,
    HITS,
    REST_BLOCKS,
    REST_MEMORY,
    REST_RESET,
    REST_ROOM,
    RULE,
    Failure,
)
from kvtrail.tracer.model.findings import Verdict as RuleVerdict
from kvtrail.tracer.rules.rule import DeadlineRule
from kvtrail.tracer.rules.rule_set import all_rules


class Result(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_EXERCISED = "not exercised"


class Verdict(StrEnum):
    """The verdict of the whole suite."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


OTHERS = {
    HITS: "lookups that claim what nobody has computed",
    BYTES: "KV that is read and is another's",
    EVENTS: "KV cache events that say what is not so",
    REST_BLOCKS: "KV blocks that are not free when all requests have ended",
    REST_MEMORY: "what the connector remembers when all requests have ended",
    REST_RESET: "a reset when all requests have ended",
    REST_ROOM: "how much a full store holds, when all requests have ended, and whether its workers hold more",
    CRASH: "an engine that dies",
    HANG: "requests that never end",
}
"""The judges of a session besides the rules."""
RULES = {rule.id: rule for rule in all_rules()}
_BY_ABSENCE = {"load-range/nothing allocated": "probe/seen"}
"""Judges that give a verdict only on a faulty connector, and the point that shows that they could have."""
NEEDED = ("lookup", "allocation", "load", "preemption", "abort", "end", "engine")
"""The subjects of core that must be exercised, at least in part, for the verdict PASSED. Resets are optional in vLLM, and
loads show what was stored."""


_OF_WORKERS = frozenset({"bytes/loads"})
"""Points that only workers that copy bytes can reach."""
_OF_PROBES = frozenset({
    "load/planned", "lookup/after-eviction", "store/planned", "store/evicted", "store/with-drafts",
})  # fmt: skip
"""Points that only a probe shows."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a requirement.

    Attributes:
        reached: how often it was at risk in runs that one of its judges could judge.
        why: why it was not exercised; None if it was.
        failures: the ids of the failures that break it.
    """

    requirement: Requirement
    result: Result
    reached: int
    why: str | None
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions of a session.

    Attributes:
        claimed, detected: features of the connector.
        overrides_reset: whether its class overrides `reset_cache`.
        other_writers: whether its lookups may find tokens that no request of this engine has computed.
        not_driven: why profiles did not run, by profile.
    """

    claimed: Sequence[Feature]
    detected: Sequence[Feature]
    overrides_reset: bool
    other_writers: bool
    not_driven: Mapping[str, str]

    @property
    def present(self) -> list[Feature]:
        return [each for each in Feature if each in self.claimed or each in self.detected]


def judge(asked: Iterable[Requirement], checked: Checked, setting: Setting) -> list[Judged]:
    """The results of the requested requirements, and of others that failed."""
    wanted = {each.id for each in asked}
    broken: dict[str, list[str]] = {}
    for found in checked.found:
        ids = [each.id for each in broken_by(found, setting.present)]
        for id in [each for each in ids if each in wanted] or ids:
            broken.setdefault(id, []).append(found.failure.id)
    return [
        _judged(each, checked, setting, tuple(broken.get(each.id, ())))
        for each in REQUIREMENTS
        if each.id in wanted or each.id in broken
    ]


def broken_by(found: Found, present: Sequence[Feature]) -> list[Requirement]:
    """The requirements that a failure breaks: those of its judge that were at risk in its small run, with the features that
    the run needs. A failure that needs several ranks does not break core, and one that needs no feature does not break the
    requirements of several ranks."""
    by, worlds = judges_of(found.failure), features.worlds(found.small.scenario, present)
    named = [each for each in REQUIREMENTS if not set(by).isdisjoint(each.judged_by)]
    if worlds:
        here = [each for each in named if each.feature in worlds]
        here += [each for each in REQUIREMENTS if each.covers_all and each.feature in worlds and each not in here]
    else:
        apart = {each.feature for each in REQUIREMENTS if each.covers_all}
        here = [
            each for each in named if each.feature not in apart and (each.feature is None or each.feature in present)
        ]
    points = reached(found.small.played)
    at_risk = [each for each in here if each.covers_all or _at_risk(each, points)]
    return at_risk or here or named


def likeliest_first(broken: Iterable[Requirement], failure: str, runs: Sequence[RunCoverage]) -> list[Requirement]:
    """The requirements that a failure breaks, the likeliest cause first: a requirement with a coverage point that failed runs
    reached and few others did. Where wrong KV is read, other requirements break as a consequence.

    This is Ochiai's coefficient over runs (Abreu, Zoeteweij and van Gemund, "On the accuracy of spectrum-based fault
    localization", 2007).
    """
    failed = sum(failure in ran.failures for ran in runs)

    def suspicion(point: str) -> float:
        at_risk = [ran for ran in runs if ran.reached[point]]
        both = sum(failure in ran.failures for ran in at_risk)
        return both / sqrt(failed * len(at_risk)) if both else 0.0

    return sorted(broken, key=lambda each: max(map(suspicion, each.reached_by)), reverse=True)


def overall(results: Sequence[Judged], checked: Checked) -> tuple[Verdict, list[str]]:
    """The verdict, and if it is inconclusive, the reasons, in sentences."""
    if checked.found:
        return Verdict.FAILED, []
    reasons = list(checked.inconclusive)
    if not reasons:
        core = [each for each in results if each.requirement.level is Level.CORE]
        for subject in NEEDED if core else ():
            of_it = [each for each in core if each.requirement.subject == subject]
            if all(each.result is Result.NOT_EXERCISED for each in of_it):
                reasons.append(f"Nothing of “{subject}” was exercised.")
    return (Verdict.INCONCLUSIVE if reasons else Verdict.PASSED), reasons


def judges_of(failure: Failure) -> tuple[str, ...]:
    """The judges that found a failure; for a rule, the rule itself and the place where it judged."""
    return (failure.what, f"{failure.what}/{failure.where}") if failure.kind == RULE else (failure.kind,)


def looked(judge: str, ran: RunCoverage, *, other_writers: bool) -> bool:
    """Whether a judge judged anything in a run; otherwise it could not have found a failure. With `other_writers`, nobody
    knows what is stored."""
    if judge in _BY_ABSENCE:
        return bool(ran.reached[_BY_ABSENCE[judge]])
    rule = judge.partition("/")[0]
    if rule in RULES:  # a rule with a deadline counts only overdue events
        seen = ran.checks.get((rule, RuleVerdict.OK), 0) + ran.checks.get((rule, RuleVerdict.DRIFT), 0)
        return bool(seen) or isinstance(RULES[rule], DeadlineRule)
    match judge:
        case "hits":
            return bool(ran.reached["lookup/hit"]) and not other_writers
        case "bytes":
            return bool(ran.reached["bytes/loads"])
        case "kv-events":
            return bool(ran.reached["events/stored"])
        case "rest/reset":
            return bool(ran.reached["end/all"] and ran.reached["reset/connector"]) and not other_writers
        case "rest/room":
            return ran.capacity_compared
        case "rest/blocks" | "rest/memory":
            return bool(ran.reached["end/all"])
    return True


def _judged(requirement: Requirement, checked: Checked, setting: Setting, failures: tuple[str, ...]) -> Judged:
    times = 0
    for ran in checked.runs:
        if any(looked(each, ran, other_writers=setting.other_writers) for each in requirement.judged_by):
            times += _at_risk(requirement, ran.reached)
    why = None if failures else _why_not(requirement, checked, setting, times)
    result = Result.FAILED if failures else Result.PASSED if why is None else Result.NOT_EXERCISED
    return Judged(requirement, result, times, why, failures)


def _at_risk(requirement: Requirement, points: Counter[str]) -> int:
    return sum(points[point] for point in requirement.reached_by)


def _why_not(requirement: Requirement, checked: Checked, setting: Setting, times: int) -> str | None:
    """Why a requirement without failures was not exercised; None if it was."""
    feature = requirement.feature
    if feature is not None and feature not in setting.present:
        for_it = [name for name, needed in features.NEEDS.items() if feature in needed]
        refused = [setting.not_driven[each] for each in for_it if each in setting.not_driven]
        return refused[0] if refused else f"the connector does not claim it ({feature}), and it was not seen"
    if requirement.subject == "reset" and not setting.overrides_reset:
        return "the connector has no reset of its own: it does not override `reset_cache`"
    if times:
        return None
    points = requirement.reached_by
    if _at_risk(requirement, checked.reached) or (_OF_WORKERS.issuperset(points) and checked.fake_workers is not None):
        unseen = _hidden(requirement, checked, setting)
        return "; ".join(unseen) or "none of its judges could say anything of the runs in which it was at risk"
    if checked.unprobed is not None and _OF_PROBES.issuperset(points):
        return _unseen(checked)
    return f"it was never reached: no run in which {' or '.join(POINTS[each] for each in points)}"


def _hidden(requirement: Requirement, checked: Checked, setting: Setting) -> list[str]:
    """The known reasons why no judge could judge the runs in which a requirement was at risk."""
    by = requirement.judged_by
    hidden = []
    if BYTES in by:
        faked = checked.fake_workers is not None and not checked.loads_read
        why = f", since its workers are fakes: {checked.fake_workers}" if faked else " in those runs"
        hidden.append(f"bytes were not compared{why}")
    if checked.unprobed is not None and any(each.partition("/")[0] in RULES for each in by):
        hidden.append(_unseen(checked))
    if REST_ROOM in by:
        hidden.append("the store was never full at rest")
    if setting.other_writers and not {HITS, REST_RESET}.isdisjoint(by):
        hidden.append("nobody knows what is stored, since others may have written it")
    return hidden


def _unseen(checked: Checked) -> str:
    return f"only a probe shows what it plans and what its store holds ({checked.unprobed})"
