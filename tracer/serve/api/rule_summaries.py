"""The findings of a range by rule: their number, requests, impact, first and last time, and known findings. The pages
Overview and Findings show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from kvtrail.tracer.model.findings import WORST_FIRST, Severity
from kvtrail.tracer.model.grouping import by_key
from kvtrail.tracer.model.known import Sighting, place_of
from kvtrail.tracer.model.outcomes import HARM, Impact
from kvtrail.tracer.rules import pages
from kvtrail.tracer.serve.api.filters import MAX_NS
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.store import FindingFilter
from kvtrail.tracer.store.reader import Reader

LOOKED_AT = 20_000
"""Number of latest findings for which the impact and the number of requests are determined."""


class FindingCounts(BaseModel):
    """The number of a rule's findings, and their impact."""

    findings: int
    """Last seen in the range."""
    looked_at: int
    """The latest of these findings, with known impact: all of them, unless there are very many."""
    requests: int
    """Number of requests with these findings."""
    healed: int
    """Number of these findings that the guard healed every time."""
    harmed: int
    """Number of these findings that did harm: their request failed or was lost, or they caused the death of an engine."""


class RuleSummary(FindingCounts):
    """The findings of one rule."""

    rule: str
    title: str
    severity: Severity
    not_known: FindingCounts
    """Findings that are not known."""
    first_ns: int
    last_ns: int
    """When the rule's findings were first and last seen, over all time and whatever the range."""


def rule_summaries(reader: Reader, resolver: OutcomeResolver, which: FindingFilter) -> list[RuleSummary]:
    """The rules with findings that meet the range's filter: first rules with harmful findings, then by severity."""
    counts: Counter[str] = Counter()
    not_known: Counter[str] = Counter()
    severities: dict[str, str] = {}
    titles, known = {rule: page.title for rule, page in pages.every().items()}, resolver.known
    for place, severity, _, number in reader.finding_counts(which, step_ns=MAX_NS):
        counts[place.rule] += number
        severities[place.rule] = min(severities.get(place.rule, severity), severity, key=WORST_FIRST.__getitem__)
        if known.of(place) is None:
            not_known[place.rule] += number
    if not counts:
        return []
    findings = [
        {**each, "is_known": known.of(place_of(each)) is not None}
        for each in resolver.impacts(reader.findings_in_brief(which, limit=LOOKED_AT))
    ]
    times = _times(reader.sightings(replace(which, severity="", since_ns=None, until_ns=None)))
    summaries = []
    for rule, number in counts.items():
        own = [each for each in findings if each["rule"] == rule]
        loud = [each for each in own if not each["is_known"]]
        summaries.append(
            RuleSummary(
                rule=rule,
                title=titles.get(rule, rule),
                severity=Severity(severities[rule]),
                not_known=_counts(loud, max(not_known[rule], len(loud))),
                **_counts(own, number).model_dump(),
                **times.get(rule, _UNTIMED),
            )
        )
    return by_weight(summaries)


_UNTIMED = {"first_ns": 0, "last_ns": 0}


def _times(sightings: Iterable[Sighting]) -> dict[str, dict[str, int]]:
    """When each rule was first and last seen."""
    return {
        rule: {"first_ns": min(each.first_ns for each in some), "last_ns": max(each.last_ns for each in some)}
        for rule, some in by_key(sightings, lambda each: each.place.rule).items()
    }


def _counts(findings: Sequence[Mapping[str, Any]], number: int) -> FindingCounts:
    """Counts of the examined findings, out of this number."""
    return FindingCounts(
        findings=number,
        looked_at=len(findings),
        requests=len({(each["engine"], each["request"]) for each in findings if each["request"]}),
        healed=sum(each["did"] is Impact.HEALED for each in findings),
        harmed=sum(each["did"] in HARM for each in findings),
    )


def by_weight(rules: Iterable[RuleSummary]) -> list[RuleSummary]:
    """Sort the rules: first rules with harmful findings, then by severity; last the rules with known findings only."""

    def weight(rule: RuleSummary) -> tuple[bool, bool, int, int, str]:
        loud = rule.not_known
        return not loud.findings, not loud.harmed, WORST_FIRST[rule.severity], -rule.findings, rule.rule

    return sorted(rules, key=weight)
