"""Findings in SQLite: one by one, by number over time, and where they occur.

Findings stay when their requests are pruned, so there are as many as there ever were. A range of them is counted in one
index, which has every column they are grouped by, and the places where they occur have a table of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from kvtrail.tracer.ledger.lanes import Lane, Window
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.known import NEVER_NS, Place, Sighting
from kvtrail.tracer.rules.old_names import OLD_NAMES, current
from kvtrail.tracer.store import EVERY, FindingFilter
from kvtrail.tracer.store.sqlite.database import Database, an_object, readable, to_text

_SIGHTINGS = (
    "INSERT INTO finding_sightings SELECT rule, engine, connector,"
    " min(coalesce(CASE WHEN json_valid(body) THEN CAST(body ->> 'first_ns' AS INTEGER) END, last_ns)), max(last_ns)"
    " FROM findings"
)
_BY_PLACE = "GROUP BY rule, engine, connector"
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS findings (
    id TEXT PRIMARY KEY, rule TEXT NOT NULL, severity TEXT NOT NULL, request TEXT NOT NULL, engine TEXT NOT NULL,
    last_ns INTEGER NOT NULL, body TEXT NOT NULL, connector TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS findings_in_time ON findings (last_ns, rule, severity, engine, connector, request)",
    "CREATE INDEX IF NOT EXISTS findings_by_request ON findings (request)",
    """CREATE TABLE IF NOT EXISTS finding_sightings (
    rule TEXT NOT NULL, engine TEXT NOT NULL, connector TEXT NOT NULL, first_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL,
    PRIMARY KEY (rule, engine, connector)
) WITHOUT ROWID""",
    # A store from before there was this table.
    f"{_SIGHTINGS} WHERE NOT EXISTS (SELECT 1 FROM finding_sightings) {_BY_PLACE}",
)
_NEEDED = ("id", "rule", "severity", "request", "engine", "first_ns", "last_ns")
_BRIEF = {
    **{name: name for name in ("id", "rule", "severity", "engine", "connector", "request")},
    **{name: f"CASE WHEN json_valid(body) THEN body ->> '{name}' END" for name in ("count", "healed")},
}
"""What is read of each finding where many are counted; NULL where that is damaged."""
_PLACE = "json_array(rule, engine, connector)"
"""One value, which SQLite looks for among many four times as fast as for a row of three."""
_LISTED = "(SELECT json_array(value ->> 0, value ->> 1, value ->> 2) FROM json_each(?))"


def rename_rules(db: sqlite3.Connection) -> None:
    """Give findings the names that their rules have today, within the open transaction."""
    for statement in SCHEMA:  # an older store may lack some of it
        db.execute(statement)
    db.create_function("current_rule", 1, current, deterministic=True)
    body = "CASE WHEN json_valid(body) THEN json_set(body, '$.rule', current_rule(rule)) ELSE body END"
    old = "SELECT value FROM json_each(?)"
    db.execute(
        f"UPDATE findings SET rule = current_rule(rule), body = {body} WHERE rule IN ({old})", (to_text([*OLD_NAMES]),)
    )
    forget(db, since_ns=NEVER_NS)


def put(db: sqlite3.Connection, findings: Sequence[Finding]) -> None:
    """Store new and changed findings, within the open transaction."""
    db.executemany(
        "INSERT OR REPLACE INTO findings (id, rule, severity, request, engine, last_ns, body, connector)"
        " VALUES (?,?,?,?,?,?,?,?)",
        (
            (f.id, f.rule, f.severity, f.request, f.engine, f.last_ns, to_text(f.as_dict()), f.connector)
            for f in findings
        ),
    )
    db.executemany(
        "INSERT INTO finding_sightings VALUES (?,?,?,?,?) ON CONFLICT DO UPDATE SET"
        " first_ns = min(first_ns, excluded.first_ns), last_ns = max(last_ns, excluded.last_ns)",
        ((f.rule, f.engine, f.connector, f.first_ns, f.last_ns) for f in findings),
    )


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the findings that were last seen since then, within the open transaction."""
    db.execute("DELETE FROM findings WHERE last_ns >= ?", (since_ns,))
    db.execute("DELETE FROM finding_sightings")
    db.execute(f"{_SIGHTINGS} WHERE true {_BY_PLACE}")


def drop_oldest(db: sqlite3.Connection, count: int) -> int:
    """Drop this many findings, the least recently seen; returns how many were dropped."""
    oldest = "SELECT id FROM findings INDEXED BY findings_in_time ORDER BY last_ns LIMIT ?"
    return db.execute(f"DELETE FROM findings WHERE id IN ({oldest})", (count,)).rowcount


class FindingReader(Database):
    """The part of `Reader` that is about findings."""

    def findings(
        self, which: FindingFilter = EVERY, *, limit: int = 100, oldest_first: bool = False
    ) -> list[dict[str, Any]]:
        return readable(self._some("body", which, limit, "ASC" if oldest_first else "DESC"), _finding, of="findings")

    def findings_in_brief(self, which: FindingFilter = EVERY, *, limit: int) -> list[dict[str, Any]]:
        rows = self._some(", ".join(_BRIEF.values()), which, limit, "DESC")
        return [dict(zip(_BRIEF, row, strict=True)) for row in rows if None not in row]

    def _some(self, columns: str, which: FindingFilter, limit: int, order: str) -> list[Any]:
        """These columns of the first findings by when they were last seen."""
        # A request has few findings. Otherwise the index alone is read, from the end of the range until enough match.
        index = "findings_by_request" if which.request else "findings_in_time"
        conditions, values = _conditions(which)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        chosen = f"SELECT id FROM findings INDEXED BY {index} {where} ORDER BY last_ns {order} LIMIT {int(limit)}"
        return self.query(
            f"SELECT {columns} FROM findings", [f"id IN ({chosen})"], values, f"ORDER BY +last_ns {order}"
        )

    def findings_trend(self, which: FindingFilter = EVERY, *, step_ns: int) -> list[dict[str, Any]]:
        step_ns = int(step_ns)
        rows = self.query(
            f"SELECT rule, severity, last_ns / {step_ns} * {step_ns}, count(*) FROM findings INDEXED BY findings_in_time",
            *_conditions(which),
            "GROUP BY 1, 2, 3 ORDER BY 3, 1",
        )
        return [dict(zip(("rule", "severity", "at_ns", "findings"), row, strict=True)) for row in rows]

    def finding_counts(self, which: FindingFilter = EVERY) -> dict[Place, int]:
        counts = "SELECT rule, engine, connector, count(*) FROM findings INDEXED BY findings_in_time"
        return {Place(*place): count for *place, count in self.query(counts, *_conditions(which), _BY_PLACE)}

    def sightings(self) -> list[Sighting]:
        rows = self.query("SELECT rule, engine, connector, first_ns, last_ns FROM finding_sightings")
        return [Sighting(Place(*place), first_ns, last_ns) for *place, first_ns, last_ns in rows]

    def marks(self, window: Window, lanes: Sequence[Lane], *, limit: int) -> list[dict[str, Any]]:
        marked = {(lane.engine, lane.request) for lane in lanes if lane.findings}
        requests = to_text(sorted({request for _, request in marked}))
        of_requests = "SELECT body FROM findings WHERE request IN (SELECT value FROM json_each(?)) LIMIT ?"
        of_engines = "SELECT body FROM findings WHERE last_ns BETWEEN ? AND ? AND request = '' LIMIT ?"
        rows = [
            *self.query(of_requests, (), (requests, limit)),
            *self.query(of_engines, (), (window.from_ns, window.to_ns, limit)),
        ]
        findings = readable(rows, _finding, of="findings")
        return [f for f in findings if not f["request"] or (f["engine"], f["request"]) in marked][:limit]


def _finding(row: Sequence[Any]) -> dict[str, Any]:
    finding = an_object(row[0])
    return {**finding, **{name: finding[name] for name in _NEEDED}}


def _conditions(which: FindingFilter) -> tuple[list[str], list[Any]]:
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
        f"{_PLACE} IN {_LISTED}": None if which.only is None else _places(which.only),
        f"{_PLACE} NOT IN {_LISTED}": None if which.but is None else _places(which.but),
    }
    given = {condition: value for condition, value in wanted.items() if value not in ("", None)}
    return list(given), list(given.values())


def _places(places: Collection[Place]) -> str:
    return to_text([list(place) for place in places])
