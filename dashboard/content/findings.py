"""The findings of a time range: by rule, over time, and one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.badges import SEVERITIES


def rule_rows(trend: Row, rules: Iterable[Row]) -> list[Row]:
    """The rules that have findings, worst first, with a count for each interval of the range, empty ones included."""
    titles = {rule["id"]: rule["title"] for rule in rules}
    step_ns = trend["step_ns"]
    intervals = range(trend["since_ns"] // step_ns * step_ns, trend["until_ns"], step_ns)
    counts: dict[tuple[str, str], Counter[int]] = {}
    for each in trend["counts"]:
        counts.setdefault((each["severity"], each["rule"]), Counter())[each["at_ns"]] += each["findings"]
    order = sorted(counts, key=lambda key: (_rank(key[0]), -counts[key].total(), key[1]))
    return [
        {
            "Severity": severity,
            "Rule": rule,
            "Findings": counts[severity, rule].total(),
            "Trend": [counts[severity, rule][at_ns] for at_ns in intervals],
            "Says": titles.get(rule, rule),
        }
        for severity, rule in order
    ]


def trend_rows(trend: Row) -> list[Row]:
    """The chart's points: findings by severity and interval."""
    counts: Counter[tuple[int, str]] = Counter()
    for each in trend["counts"]:
        counts[each["at_ns"], each["severity"]] += each["findings"]
    return [
        {"at": at_ns // 10**6, "to": (at_ns + trend["step_ns"]) // 10**6, "severity": severity, "findings": findings,
         "order": _rank(severity), "time": text.clock(at_ns)}
        for (at_ns, severity), findings in sorted(counts.items())
    ]  # fmt: skip


def finding_rows(findings: Iterable[Row]) -> list[Row]:
    """The findings one by one, in the order given."""
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
            "Engine": finding["engine_name"],
            "Model": finding["model"] or None,
        }
        for finding in findings
    ]


def total(trend: Row) -> int:
    """How many findings the filters match in the range."""
    return sum(each["findings"] for each in trend["counts"])


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
