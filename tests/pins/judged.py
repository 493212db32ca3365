"""What is said of golden and released traces, incidents and look-alikes: verdicts, findings, causes, explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from history import judge
from incidents.corpus import INCIDENTS, LOOK_ALIKES
from incidents.holdout import HOLDOUT
from incidents.incident import Scenario

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.history import load
from kvtrail.tracer.model.findings import Finding, clock
from pins import plain, written

GOLDEN = Path(__file__).parents[1] / "golden"
_LEFT_OUT = ("id", "title", "severity", "hint", "external", "trace_id", "first_ns", "last_ns")
"""Fields of a finding that its rule or its request has: they are pinned once, or are those of its witnesses."""
_OF_REQUEST = (
    "engine", "request", "external", "trace_id", "connector", "recorder", "causes", "started_ns", "last_ns", "ended_ns",
)  # fmt: skip
_OF_PLACE = ("file", "line")


def golden() -> dict[str, Any]:
    """The golden traces and those of findings in connectors that others wrote."""
    paths = [*GOLDEN.glob("*.jsonl"), *GOLDEN.glob("findings/*.jsonl")]
    return {str(path.relative_to(GOLDEN)): _of_trace(path) for path in paths}


def released() -> dict[str, Any]:
    """What the recorders of released versions sent."""
    return {path.name: _of_trace(path) for path in GOLDEN.glob("versions/*.otlp")}


def incidents() -> dict[str, Any]:
    """The incidents, also those that no rule was made with."""
    made = {each.id: _of_scenario(each) for each in INCIDENTS}
    return made | {each.id: _of_scenario(each) for each in HOLDOUT}


def look_alikes() -> dict[str, Any]:
    """The legal histories that resemble drifts."""
    return {f"{each.of} {each.rule}: {each.what}": _of_scenario(each) for each in LOOK_ALIKES}


def _of_scenario(scenario: Scenario) -> dict[str, Any]:
    return _said(scenario.judged())


def _of_trace(path: Path) -> dict[str, Any]:
    """What an audit says of a trace, and what is only known of its requests."""
    whole = audit([path]).as_dict()
    whole["findings"] = [_finding(each) for each in whole["findings"]]
    whole["unreadable"] = [
        {name: value for name, value in each.items() if name not in _OF_PLACE} for each in whole["unreadable"]
    ]
    detector = judge(load([path]).events)
    return {"audit": whole, "requests": _requests(detector)}


def _said(detector: Detector) -> dict[str, Any]:
    checks: dict[str, Counter[str]] = {}
    for (rule, verdict), number in detector.verdicts.items():
        if number:
            checks.setdefault(rule, Counter())[verdict.value] = number
    why: dict[str, Counter[str]] = {}
    for (rule, reason), number in detector.unknown.items():
        if number:
            why.setdefault(rule, Counter())[reason.name.lower()] = number
    return {
        "checks": {rule: _counted(counts) for rule, counts in checks.items()},
        "unknown": {rule: _counted(counts) for rule, counts in why.items()},
        "findings": [
            _finding(finding.as_dict())
            for held in detector.findings.values()
            for finding in sorted(held.values(), key=_order)
        ],
        "requests": _requests(detector),
    }


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


def _order(finding: Finding) -> tuple[str, str, int]:
    return finding.rule, finding.request, finding.epoch


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding, with a text for each witness."""
    found = {name: value for name, value in finding.items() if name not in _LEFT_OUT}
    found["witness"] = [
        f"{w['label']} {w['kind']} {clock(w['at_ns'])} epoch {w['epoch']} span {w['span_id']}: {_text(w['numbers'])}"
        for w in finding["witness"]
    ]
    return found


def _requests(detector: Detector) -> dict[str, Any]:
    """By engine and request, the verdict, the account, and the causes of its tokens."""
    found = {}
    for (engine, request), account in detector.accounts.items():
        reason, known = detector.why_unknown(account), account.as_dict()
        causes = [
            f"{p['start']}+{p['tokens']}: {_text(p, 'start', 'tokens')}" for e in known["causes"] for p in e["parts"]
        ]
        found[f"{engine} {request}"] = {
            "verdict": detector.verdict(account)
            if reason is None
            else f"{detector.verdict(account)}: {reason.name.lower()}",
            "account": _text(known, *_OF_REQUEST),
            **({"causes": causes} if causes else {}),
        }
    return found


def _text(values: Mapping[str, Any], *but: str) -> str:
    """What is not empty, and not left out."""
    return " ".join(
        f"{name}={written(plain(value))}" if isinstance(value, dict | list | tuple) else f"{name}={value}"
        for name, value in sorted(values.items())
        if name not in but and value not in (None, 0, "", [], {}, ())
    )
