"""Findings: those of a time range by rule, over time and one by one; and each in sentences, with its evidence and numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.palette import SEVERITY
from kvtrail.tracer.model.words import count, described, ending, kind, value

_EPOCH = re.compile(r"\bepoch (\d+)\b")
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")
_LET = re.compile(r"^Let (\w+) = ")


def rule_rows(rules: Iterable[Row]) -> list[Row]:
    """The rules with findings, worst first: their severity, their impact, and their findings over time."""
    order = sorted(rules, key=lambda rule: (-rule["harmed"], _rank(rule["severity"]), -rule["findings"], rule["rule"]))
    return [
        {
            "Could": [rule["severity"]],
            "Did": impact(harmed=rule["harmed"], healed=rule["healed"], findings=rule["looked_at"]),
            "Rule": rule["rule"],
            "Says": rule["title"],
            "Findings": rule["findings"],
            "Requests": rule["requests"],
            "Trend": rule["trend"],
        }
        for rule in order
    ]


def impact(*, harmed: int, healed: int, findings: int) -> str:
    """The impact of a rule's findings: 2 did harm, 11 healed."""
    rest = max(0, findings - harmed - healed)
    parts = [f"{count(harmed)} did harm"] * bool(harmed) + [f"{count(healed)} healed"] * bool(healed)
    if not parts:
        return "no harm seen" if findings else "too old to say"
    return ", ".join(parts + [f"{count(rest)} without harm seen"] * bool(rest))


def sample(rules: Sequence[Row]) -> str:
    """A sentence if only some of the findings were asked what they did, with a blank before it; else an empty text."""
    looked_at, found = (sum(rule[name] for rule in rules) for name in ("looked_at", "findings"))
    return "" if looked_at >= found else f" Impact and requests are those of the latest {count(looked_at)}."


def latest_of_each_rule(findings: Iterable[Row], *, most: int) -> list[Row]:
    """The latest finding of each of the first `most` rules: findings of one rule read alike."""
    latest: dict[str, Row] = {}
    for finding in findings:
        latest.setdefault(finding["rule"], finding)
    return list(latest.values())[:most]


def trend_rows(trend: Row) -> list[Row]:
    """The chart's bars: findings by interval and severity."""
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
            "Says": sentences(finding)[-1],
            "Preemptions": finding["epoch"],
            "Seen": finding["count"],
            "Connector": finding["connector"],
            "Engine": finding["engine_name"],
            "Model": finding["model"] or None,
        }
        for finding in findings
    ]


def total(trend: Row) -> int:
    """The number of findings that match the filters in the range."""
    return sum(each["findings"] for each in trend["counts"])


def _rank(severity: str) -> int:
    order = list(SEVERITY)
    return order.index(severity) if severity in order else len(order)


def _run(epoch: int) -> str:
    """When in a request's life: before any preemption, or after which one."""
    return "before any preemption" if not epoch else f"after it was preempted {ending(epoch)}"


def sentences(finding: Row) -> list[str]:
    """A finding's explanation, sentence by sentence; it needs no glossary."""
    parts = _SENTENCE_END.split(finding["explanation"])
    return [_LET.sub(r"\1 is ", _EPOCH.sub(lambda found: _run(int(found[1])), part)) for part in parts]


def sightings(finding: Row, *, now_ns: int) -> str:
    """Its rule, how often it was seen, and when."""
    first, last = (text.clock(finding[end], now_ns=now_ns) for end in ("first_ns", "last_ns"))
    when = f"at {first}" if finding["count"] == 1 else f"{ending(finding['count'])}, from {first} to {last}"
    return f"rule {finding['rule']}, seen {when} UTC"


def evidence(finding: Row, steps: Mapping[str, int]) -> list[Row]:
    """The witnesses, as rows; `steps` has each step's number by span id."""
    return [
        {
            "Proof": witness["label"],
            "Step": steps.get(witness["span_id"]),
            "Time (UTC)": text.clock(witness["at_ns"]),
            "Kind": kind(witness["kind"]),
            "Says": described(witness["kind"], witness["numbers"]),
        }
        for witness in finding["witness"]
    ]


def numbers(finding: Row) -> list[Row]:
    """The numbers in the sentences, by the rule's names for them."""
    return [{"Number": name.replace("_", " "), "Value": value(number)} for name, number in finding["numbers"].items()]
