"""The alerts of `kvtrail.rules.yml` as Grafana provisions them.

Grafana evaluates them itself, against Prometheus. Recorded series are written out, so that they need no rule file there.
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


def provisioned(rules: Mapping[str, Any]) -> dict[str, Any]:
    """The provisioning file for the content of a Prometheus rule file."""
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


def written_out(expr: str, recorded: Mapping[str, str]) -> str:
    """An expression without recorded series; a selection on one becomes a selection on what it is made of."""
    for name, meaning in recorded.items():
        pattern = re.compile(re.escape(name) + r"(?P<select>\{[^}]*\})?(?![\w:])")
        if pattern.search(expr):
            expr = pattern.sub(partial(_selected, written_out(meaning, recorded)), expr)
    return expr.strip()


def _selected(expr: str, match: re.Match[str]) -> str:
    return "(" + _selecting(expr, match["select"]) + ")"


def _selecting(expr: str, select: str | None) -> str:
    """The selection moves to every metric that has no labels chosen yet; they all are kvtrail's counters of findings."""
    return expr if select is None else re.sub(r"(kvtrail_findings_total)(?!\w)", rf"\1{select}", expr)


def _alert(rule: Mapping[str, Any], recorded: Mapping[str, str]) -> dict[str, Any]:
    query = {"refId": "A", "expr": written_out(rule["expr"], recorded), "instant": True, "range": False}
    # A Prometheus alert fires for every series that its expression returns, also at 0; none of ours is below.
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
    """Grafana has a value for each query. Of annotations it takes `$` as it stands; in labels it would be `$$`."""
    return text.replace("$value", "$values.A.Value")
