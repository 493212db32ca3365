"""Findings in SQLite: which, how many over time, and where.

Findings stay when their requests leave, so these are as many as there ever were. A window of them is counted in one index,
which has all that they are told apart by, and their places are kept beside them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.store import Which
from kvtrail.tracer.store.sqlite.ids import Query
from kvtrail.tracer.store.sqlite.texts import from_text, to_text

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS findings (
    id TEXT PRIMARY KEY, rule TEXT NOT NULL, severity TEXT NOT NULL, request TEXT NOT NULL, engine TEXT NOT NULL,
    last_ns INTEGER NOT NULL, body TEXT NOT NULL, connector TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS findings_in_time ON findings (last_ns, rule, severity, engine, connector, request)",
    "CREATE INDEX IF NOT EXISTS findings_by_request ON findings (request)",
    "CREATE TABLE IF NOT EXISTS finding_places (kind TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (kind, name))"
    " WITHOUT ROWID",
)
_PLACES = {"rules": "rule", "connectors": "connector", "engines": "engine"}
_PUT_PLACE = "INSERT OR IGNORE INTO finding_places (kind, name)"


def upgrade(db: sqlite3.Connection) -> None:
    """Turn the findings of a store of schema 1, of which only the body named the connector, into these."""
    db.execute("ALTER TABLE findings ADD COLUMN connector TEXT NOT NULL DEFAULT ''")
    db.execute("UPDATE findings SET connector = coalesce(body ->> '$.connector', '')")
    db.execute("DROP INDEX IF EXISTS findings_by_time")
    for statement in SCHEMA:
        db.execute(statement)
    for kind, column in _PLACES.items():
        db.execute(f"{_PUT_PLACE} SELECT DISTINCT ?, {column} FROM findings WHERE {column} != ''", (kind,))


def put(db: sqlite3.Connection, findings: Iterable[Finding]) -> None:
    """Store findings, new ones and changed ones, within the transaction that is open."""
    listed = list(findings)
    db.executemany(
        "INSERT OR REPLACE INTO findings (id, rule, severity, request, engine, last_ns, body, connector)"
        " VALUES (?,?,?,?,?,?,?,?)",
        ((f.id, f.rule, f.severity, f.request, f.engine, f.last_ns, to_text(f.as_dict()), f.connector) for f in listed),
    )
    places = {(kind, getattr(f, column)) for f in listed for kind, column in _PLACES.items()}
    db.executemany(f"{_PUT_PLACE} VALUES (?, ?)", (place for place in places if place[1]))


def find(query: Query, which: Which, *, limit: int) -> list[dict[str, Any]]:
    """See `Reader.findings`."""
    # By their requests they are few; else the window is read from its end, in the index alone, until enough fit.
    index = "findings_by_request" if which.request else "findings_in_time"
    conditions, values = _narrowed(which)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    latest = f"SELECT id FROM findings INDEXED BY {index} {where} ORDER BY last_ns DESC LIMIT {int(limit)}"
    rows = query("SELECT body FROM findings", [f"id IN ({latest})"], values, "ORDER BY +last_ns DESC")
    return [from_text(body) for (body,) in rows]


def trend(query: Query, which: Which, *, step_ns: int) -> list[dict[str, Any]]:
    """See `Reader.findings_trend`."""
    step_ns = int(step_ns)
    rows = query(
        f"SELECT rule, severity, last_ns / {step_ns} * {step_ns}, count(*) FROM findings INDEXED BY findings_in_time",
        *_narrowed(which),
        "GROUP BY 1, 2, 3 ORDER BY 3, 1",
    )
    return [dict(zip(("rule", "severity", "at_ns", "findings"), row, strict=True)) for row in rows]


def places(query: Query) -> dict[str, list[str]]:
    """See `Reader.findings_places`."""
    rows = query("SELECT kind, name FROM finding_places", [], [], "ORDER BY kind, name")
    return {kind: [name for of, name in rows if of == kind] for kind in _PLACES}


def _narrowed(which: Which) -> tuple[list[str], list[Any]]:
    """The conditions of a WHERE, and their values."""
    wanted: dict[str, Any] = {
        "request = ?": which.request,
        "engine = ?": which.engine,
        "rule = ?": which.rule,
        "severity = ?": which.severity,
        "connector = ?": which.connector,
        "engine IN (SELECT value FROM json_each(?))": None if which.engines is None else to_text([*which.engines]),
        "last_ns >= ?": which.since_ns,
        "last_ns < ?": which.until_ns,
    }
    given = {condition: value for condition, value in wanted.items() if value not in ("", None)}
    return list(given), list(given.values())
