"""The alerts of `kvtrail.rules.yml` as Grafana provisions them.

Grafana itself evaluates them against Prometheus. Recorded series are expanded, so that Prometheus needs no rule file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

SOURCE = "kvtrail-prometheus"
"""The uid of the data source in `provisioning/datasources`."""
INTERVAL = "1m"
_AGO = re.compile(r"""\{\{ query "1e3 \* \(time\(\) - (\d+)\)" \| first \| value \| printf "%\.0f" \}\}""")
_NOW = """{{ query "1e3 * time()" | first | value | printf "%.0f" }}"""
"""How Prometheus writes the time range of a link, in Unix milliseconds."""


def provisioned(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Grafana's provisioning file for the content of a Prometheus rule file."""
    every = [rule for group in rules["groups"] for rule in group["rules"]]
    recorded = {rule["record"]: rule["expr"].strip() for rule in every if "record" in rule}
    groups = []
    for group in rules["groups"]:
        alerts = [_alert(rule, recorded) for rule in group["rules"] if "alert" in rule]
        if alerts:
            groups.append(
                {"orgId": 1, "name": group["name"], "folder": "kvtrail", "interval": INTERVAL, "rules": alerts}
            )
    return {"apiVersion": 1, "groups": groups}


def expanded(expr: str, recorded: Mapping[str, str]) -> str:
    """An expression with its recorded series expanded. A label selection on a recorded series moves to its counters of
    findings."""
    for name, meaning in recorded.items():
        pattern = re.compile(re.escape(name) + r"(?P<select>\{[^}]*\})?(?![\w:])")
        if pattern.search(expr):
            expr = pattern.sub(partial(_substituted, expanded(meaning, recorded)), expr)
    return expr.strip()


def _substituted(meaning: str, match: re.Match[str]) -> str:
    if select := match["select"]:
        meaning = re.sub(r"(kvtrail_findings_total\{[^}]*)(?=\})", rf"\1,{select[1:-1]}", meaning)
    return f"({meaning})"


def _alert(rule: Mapping[str, Any], recorded: Mapping[str, str]) -> dict[str, Any]:
    query = {"refId": "A", "expr": expanded(rule["expr"], recorded), "instant": True, "range": False}
    # A Prometheus alert fires for every series that its expression returns, even at 0. None of kvtrail's is negative.
    any_value = {"evaluator": {"type": "gt", "params": [-1]}}
    every_series = {"refId": "C", "type": "threshold", "expression": "A", "conditions": [any_value]}
    return {
        "uid": hashlib.blake2b(rule["alert"].encode(), digest_size=8).hexdigest(),
        "title": rule["alert"],
        "condition": "C",
        "data": [
            {
                "refId": "A", "datasourceUid": SOURCE, "relativeTimeRange": {"from": 600, "to": 0}, "model": query,
            },
            {
                "refId": "C", "datasourceUid": "__expr__", "relativeTimeRange": {"from": 0, "to": 0},
                "model": every_series,
            },
        ],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": rule.get("for", "0s"),
        "labels": dict(rule["labels"]),
        "annotations": {name: _in_grafana(text) for name, text in rule["annotations"].items()},
        "isPaused": False,
    }  # fmt: skip


def _in_grafana(text: str) -> str:
    """The text with Grafana's variable, which has a value per query. Grafana's templates cannot ask for the time: there, a
    link's range is relative to when it is opened."""
    return _AGO.sub(r"now-\1s", text).replace(_NOW, "now").replace("$value", "$values.A.Value")
