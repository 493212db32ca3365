"""The findings of a window: by rule, over time, and one by one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from kvtrail.dashboard import wording
from kvtrail.dashboard.client import Row

SEVERITIES = list(wording.SEVERITY_COLORS)
"""Worst first."""


def rule_rows(trend: Row, rules: Iterable[Row]) -> list[Row]:
    """The rules that found something, the worst first: how often, with a number for each stretch of the window."""
    titles = {rule["id"]: rule["title"] for rule in rules}
    begins = stretches(trend)
    counts: dict[tuple[str, str], Counter[int]] = {}
    for stretch in trend["counts"]:
        counts.setdefault((stretch["severity"], stretch["rule"]), Counter())[stretch["at_ns"]] += stretch["findings"]
    order = sorted(counts, key=lambda key: (_weight(key[0]), -counts[key].total(), key[1]))
    return [
        {
            "Severity": severity,
            "Rule": rule,
            "Findings": counts[severity, rule].total(),
            "Trend": [counts[severity, rule][at_ns] for at_ns in begins],
            "Says": titles.get(rule, rule),
        }
        for severity, rule in order
    ]


def trend_rows(trend: Row) -> list[Row]:
    """The points of the chart: findings of a severity in a stretch."""
    counts: Counter[tuple[int, str]] = Counter()
    for stretch in trend["counts"]:
        counts[stretch["at_ns"], stretch["severity"]] += stretch["findings"]
    return [
        {"at": at_ns // 10**6, "to": (at_ns + trend["step_ns"]) // 10**6, "severity": severity, "findings": found,
         "order": _weight(severity), "time": wording.clock(at_ns)}
        for (at_ns, severity), found in sorted(counts.items())
    ]  # fmt: skip


def stretches(trend: Row) -> list[int]:
    """Where the stretches of the window begin, empty ones among them."""
    step_ns = trend["step_ns"]
    return list(range(trend["since_ns"] // step_ns * step_ns, trend["until_ns"], step_ns))


def finding_rows(findings: Iterable[Row]) -> list[Row]:
    """The findings one by one, as they came."""
    return [
        {
            "Last seen": datetime.fromtimestamp(finding["last_ns"] / 1e9, UTC),
            "Severity": finding["severity"],
            "Rule": finding["rule"],
            "Request": finding["external"] or finding["request"],
            "Explanation": finding["explanation"],
            "Epoch": finding["epoch"],
            "Seen": finding["count"],
            "Healed": finding["healed"],
            "Connector": finding["connector"],
            "Engine": finding["engine"][:8],
            "Model": finding["model"] or None,
        }
        for finding in findings
    ]


def total(trend: Row) -> int:
    """How many findings of the window fit."""
    return sum(stretch["findings"] for stretch in trend["counts"])


def rule_named(rules: Sequence[Row], name: str) -> Row | None:
    """The rule of that name; None where there is none."""
    return next((rule for rule in rules if rule["id"] == name), None)


def _weight(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
