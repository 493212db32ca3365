"""Queries of SQLite's findings: which, how many over time, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tracer.store import Which

Query = Callable[..., list[Any]]
"""Takes a SELECT, its conditions, their values and what follows them; returns rows."""
_CONNECTOR = "body ->> '$.connector'"


def narrowed(which: Which) -> tuple[list[str], list[Any]]:
    """The conditions of a WHERE, and their values."""
    wanted: dict[str, Any] = {
        "request = ?": which.request,
        "engine = ?": which.engine,
        "rule = ?": which.rule,
        "severity = ?": which.severity,
        f"{_CONNECTOR} = ?": which.connector,
        "engine IN (SELECT value FROM json_each(?))": None if which.engines is None else json.dumps([*which.engines]),
        "last_ns >= ?": which.since_ns,
        "last_ns < ?": which.until_ns,
    }
    given = {condition: value for condition, value in wanted.items() if value not in ("", None)}
    return list(given), list(given.values())


def trend(query: Query, which: Which, *, step_ns: int) -> list[dict[str, Any]]:
    """See `Reader.findings_trend`."""
    step_ns = int(step_ns)
    rows = query(
        f"SELECT rule, severity, last_ns / {step_ns} * {step_ns}, count(*) FROM findings",
        *narrowed(which),
        "GROUP BY 1, 2, 3 ORDER BY 3, 1",
    )
    return [dict(zip(("rule", "severity", "at_ns", "findings"), row, strict=True)) for row in rows]


def places(query: Query) -> dict[str, list[str]]:
    """See `Reader.findings_places`."""
    columns = {"rules": "rule", "connectors": _CONNECTOR, "engines": "engine"}
    return {
        name: [value for (value,) in query(f"SELECT DISTINCT {column} FROM findings", [], [], "ORDER BY 1") if value]
        for name, column in columns.items()
    }
