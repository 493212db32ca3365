"""Findings of a time range by rule, over time, and as a list; and a single finding in sentences, with its evidence and
numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.palette import SEVERITY
from kvtrail.tracer.model.words import count, described, kind, without_epochs

_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")
_LET = re.compile(r"^Let (\w+) = ")


def rule_rows(rules: Iterable[Row], *, oldest_first: bool = False) -> list[Row]:
    """The rules with findings, with their severity, impact, and first and last sighting: the worst first and known ones last,
    or those that were seen first."""

    def weight(rule: Row) -> tuple[Any, ...]:
        loud = rule["not_known"]
        weight = (not loud["findings"], -loud["harmed"], _rank(rule["severity"]), -rule["findings"], rule["rule"])
        return (rule["first_ns"], *weight) if oldest_first else weight

    order = sorted(rules, key=weight)
    labels = [known_of_rule(rule) for rule in order]
    return [
        {
            "Severity": [rule["severity"]],
            "What they did": impact(harmed=rule["harmed"], healed=rule["healed"], findings=rule["looked_at"]),
            "Rule": rule["rule"],
            **({"Known": words} if any(labels) else {}),
            "Says": rule["title"],
            "Findings": rule["findings"],
            "Requests": rule["requests"],
            "First seen": text.moment(rule["first_ns"]),
            "Last seen": text.moment(rule["last_ns"]),
        }
        for rule, words in zip(order, labels, strict=True)
    ]


def known_of_rule(rule: Row) -> list[str]:
    """The words of the palette for a rule's findings: whether they are known."""
    loud = rule["not_known"]["findings"]
    known = "known" if not loud else "partly known" if loud < rule["findings"] else ""
    return [known] * bool(known)


def known(rules: Iterable[Row]) -> int:
    """The number of known findings."""
    return sum(rule["findings"] - rule["not_known"]["findings"] for rule in rules)


def seen(rule: Row, *, now_ns: int) -> str:
    """When a rule's findings were first and last seen."""
    first, last = (text.clock(rule[end], now_ns=now_ns).partition(".")[0] for end in ("first_ns", "last_ns"))
    return f"First seen {first}, last seen {last} UTC."


def reasons(findings: Iterable[Row]) -> list[str]:
    """The reasons for which findings are known, each once."""
    return list(dict.fromkeys(why_known(finding["known"]) for finding in findings if finding["known"]))


def why_known(known: Row) -> str:
    """Until when a finding is known, and why."""
    until = f" until {known['until']}" if known["until"] else ""
    return f"Known{until}: {known['why']}"


def impact(*, harmed: int, healed: int, findings: int) -> str:
    """The impact of a rule's findings: 2 did harm, 11 healed."""
    rest = max(0, findings - harmed - healed)
    parts = [f"{count(harmed)} did harm"] * bool(harmed) + [f"{count(healed)} healed"] * bool(healed)
    if not parts:
        return "no harm seen" if findings else "too old to say"
    return ", ".join(parts + [f"{count(rest)} without harm seen"] * bool(rest))


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


def finding_rows(findings: Sequence[Row]) -> list[Row]:
    """The findings as rows, in the given order."""
    some_are_known = any(finding["known"] for finding in findings)
    return [
        {
            "Last seen": text.moment(finding["last_ns"]),
            "Severity": [finding["severity"]],
            "Impact": [finding["did"]],
            "Rule": finding["rule"],
            **({"Known": ["known"] if finding["known"] else []} if some_are_known else {}),
            "Request": finding["external"] or finding["request"],
            "Says": sentences(finding)[-1],
            "Engine": finding["engine_name"],
            "Model": finding["model"] or None,
        }
        for finding in findings
    ]


def _rank(severity: str) -> int:
    order = list(SEVERITY)
    return order.index(severity) if severity in order else len(order)


def sentences(finding: Row) -> list[str]:
    """A finding's explanation, sentence by sentence; it needs no glossary."""
    parts = _SENTENCE_END.split(finding["explanation"])
    return [_LET.sub(r"\1 is ", without_epochs(part)) for part in parts]


def sightings(finding: Row, *, now_ns: int) -> str:
    """Its rule, and when it was seen."""
    first, last = (text.clock(finding[end], now_ns=now_ns) for end in ("first_ns", "last_ns"))
    return f"rule {finding['rule']}, at {first}{f', last at {last}' if last != first else ''} UTC"


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
