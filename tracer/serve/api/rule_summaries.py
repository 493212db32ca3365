"""The findings of a range by rule: how many, in how many requests, and what they did; for the first page and that of"
" findings."""

from __future__ import annotations

from collections import Counter

from kvtrail.tracer.rules import all_rules
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
        severities[each["rule"]] = each["severity"]
    if not counts:
        return []
    titles = {rule.id: rule.title for rule in all_rules()}
    findings = resolver.impacts(reader.findings_in_brief(which, limit=LOOKED_AT))
    return status.by_weight(
        status.summary(
            {"rule": rule, "title": titles.get(rule, rule), "severity": severities[rule]},
            [each for each in findings if each["rule"] == rule],
            of_rule,
            range_,
            step_ns=step_ns,
        )
        for rule, of_rule in counts.items()
    )
