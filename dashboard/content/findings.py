"""The findings of a time range: by rule, over time, and one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import proof, text
from kvtrail.dashboard.content.palette import SEVERITY
from kvtrail.tracer.model.words import count

HARMED = ("engine died", "request lost", "request failed")
"""What a finding did, if it did harm."""


def rule_rows(rules: Iterable[Row]) -> list[Row]:
    """The rules that have findings, worst first: what each could do, what its findings did, and how many there were when."""
    order = sorted(rules, key=lambda rule: (-rule["harmed"], _rank(rule["severity"]), -rule["findings"], rule["rule"]))
    return [
        {
            "Could": [rule["severity"]],
            "Did": did(harmed=rule["harmed"], healed=rule["healed"], findings=rule["looked_at"]),
            "Rule": rule["rule"],
            "Says": rule["title"],
            "Findings": rule["findings"],
            "Requests": rule["requests"],
            "Trend": rule["trend"],
        }
        for rule in order
    ]


def did(*, harmed: int, healed: int, findings: int) -> str:
    """What the findings of a rule did: 2 did harm, 11 healed."""
    rest = max(0, findings - harmed - healed)
    parts = [f"{count(harmed)} did harm"] * bool(harmed) + [f"{count(healed)} healed"] * bool(healed)
    if not parts:
        return "no harm seen"
    return ", ".join(parts + [f"{count(rest)} without harm seen"] * bool(rest))


def narrowed(trend: Row, findings: Iterable[Row], rules: Iterable[Row]) -> list[Row]:
    """The rules of findings that a filter has chosen, as `/api/status` has those of all: counts from their trend, and what
    they did from the findings that are listed."""
    titles = {rule["id"]: rule["title"] for rule in rules}
    step_ns = trend["step_ns"]
    intervals = range(trend["since_ns"] // step_ns * step_ns, trend["until_ns"], step_ns)
    counts: dict[tuple[str, str], Counter[int]] = {}
    for each in trend["counts"]:
        counts.setdefault((each["rule"], each["severity"]), Counter())[each["at_ns"]] += each["findings"]
    listed: dict[str, list[Row]] = {}
    for finding in findings:
        listed.setdefault(finding["rule"], []).append(finding)
    return [
        {
            "rule": rule,
            "title": titles.get(rule, rule),
            "severity": severity,
            "findings": by_time.total(),
            "looked_at": len(listed.get(rule, ())),
            "requests": len({(each["engine"], each["request"]) for each in listed.get(rule, ())}),
            "harmed": sum(each["did"] in HARMED for each in listed.get(rule, ())),
            "healed": sum(each["did"] == "healed" for each in listed.get(rule, ())),
            "trend": [by_time[at_ns] for at_ns in intervals],
        }
        for (rule, severity), by_time in counts.items()
    ]


def latest_of_each_rule(findings: Iterable[Row], *, most: int) -> list[Row]:
    """The latest finding of each of the first rules: several of one rule say the same."""
    latest: dict[str, Row] = {}
    for finding in findings:
        latest.setdefault(finding["rule"], finding)
    return list(latest.values())[:most]


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
            "Could": [finding["severity"]],
            "Did": [finding["did"]],
            "Rule": finding["rule"],
            "Request": finding["external"] or finding["request"],
            "Says": proof.sentences(finding)[-1],
            "Preemptions": finding["epoch"],
            "Seen": finding["count"],
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
    order = list(SEVERITY)
    return order.index(severity) if severity in order else len(order)
