"""The findings of a range by rule: how many, in how many requests, what they did, since when, and which are known; for the
first page and that of findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvtrail.tracer.model.findings import WORST_FIRST
from kvtrail.tracer.model.known import Sighting, place_of
from kvtrail.tracer.rules import pages
from kvtrail.tracer.serve.api import status
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.serve.api.status import Range, RuleSummary
from kvtrail.tracer.store import FindingFilter, Reader

LOOKED_AT = 20_000
"""Findings, the latest, for which it is asked what they did, and in how many requests they are."""
STRETCHES = 30
"""Of a rule's trend."""


def rule_summaries(reader: Reader, resolver: OutcomeResolver, which: FindingFilter, range_: Range) -> list[RuleSummary]:
    """The rules with findings that meet the filter, which is that of the range: first those that did harm, then by what they
    can do."""
    step_ns = max(1, -(-(range_.until_ns - range_.since_ns) // STRETCHES))
    counts: dict[str, Counter[int]] = {}
    severities: dict[str, str] = {}
    for each in reader.findings_trend(which, step_ns=step_ns):
        counts.setdefault(each["rule"], Counter())[each["at_ns"]] += each["findings"]
        so_far = severities.get(each["rule"], each["severity"])
        severities[each["rule"]] = min(so_far, each["severity"], key=WORST_FIRST.__getitem__)
    if not counts:
        return []
    titles, known = {rule: page.title for rule, page in pages.every().items()}, resolver.known
    not_known: Counter[str] = Counter()
    for place, number in reader.finding_counts(which).items():
        if known.of(place) is None:
            not_known[place.rule] += number
    findings = [
        {**each, "is_known": known.of(place_of(each)) is not None}
        for each in resolver.impacts(reader.findings_in_brief(which, limit=LOOKED_AT))
    ]
    times = _times(_meeting(which, reader.sightings()), resolver)
    return status.by_weight(
        status.summary(
            {"rule": rule, "title": titles.get(rule, rule), "severity": severities[rule], **times.get(rule, _UNTIMED)},
            [each for each in findings if each["rule"] == rule],
            of_rule,
            range_,
            step_ns=step_ns,
            not_known=not_known[rule],
        )
        for rule, of_rule in counts.items()
    )


_UNTIMED: dict[str, Any] = {"first_ns": 0, "last_ns": 0, "new_since_ns": None}


def _meeting(which: FindingFilter, sightings: Iterable[Sighting]) -> list[Sighting]:
    """Those of the places that the filter is about."""
    only, but = (None if places is None else {*places} for places in (which.only, which.but))
    return [
        each
        for each in sightings
        if which.rule in ("", each.place.rule)
        and which.engine in ("", each.place.engine)
        and which.connector in ("", each.place.connector)
        and (which.engines is None or each.place.engine in which.engines)
        and (only is None or each.place in only)
        and (but is None or each.place not in but)
    ]


def _times(sightings: Iterable[Sighting], resolver: OutcomeResolver) -> dict[str, dict[str, Any]]:
    """By rule: when it was first and last seen, and since which deploy it is new: the latest one of engines that did not have
    the rule's findings before it."""
    by_rule: dict[str, list[Sighting]] = {}
    firsts: dict[tuple[str, tuple[str, ...]], int] = {}
    for each in sightings:
        by_rule.setdefault(each.place.rule, []).append(each)
        key = (each.place.rule, resolver.group(each.place.engine))
        firsts[key] = min(firsts.get(key, each.first_ns), each.first_ns)
    new: dict[str, int] = {}
    for (rule, group), first_ns in firsts.items():
        deployed_ns = resolver.deploys.get(group)
        if deployed_ns is not None and first_ns >= deployed_ns:
            new[rule] = max(new.get(rule, 0), deployed_ns)
    return {
        rule: {
            "first_ns": min(each.first_ns for each in some),
            "last_ns": max(each.last_ns for each in some),
            "new_since_ns": new.get(rule),
        }
        for rule, some in by_rule.items()
    }
