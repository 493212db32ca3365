"""Markers in SQLite: resets and drops of events."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.store.sqlite.database import Database, readable

MAX_KEPT = 20_000
"""The latest that are kept."""
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS markers (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, at_ns INTEGER NOT NULL, engine TEXT NOT NULL, text TEXT NOT NULL
) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS markers_in_time ON markers (kind, at_ns)",
)
_COLUMNS = "id, kind, at_ns, engine, text"


def put(db: sqlite3.Connection, markers: Sequence[Marker]) -> None:
    """Store new markers, within the open transaction."""
    db.executemany(
        f"INSERT OR IGNORE INTO markers ({_COLUMNS}) VALUES (?,?,?,?,?)",
        ((each.id, each.kind, each.at_ns, each.engine, each.text) for each in markers),
    )


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Drop the markers from before, and the oldest beyond `MAX_KEPT`, within the open transaction."""
    db.execute("DELETE FROM markers WHERE at_ns < ?", (before_ns,))
    oldest = "SELECT at_ns FROM markers ORDER BY at_ns DESC LIMIT 1 OFFSET ?"
    for (at_ns,) in db.execute(oldest, (MAX_KEPT,)).fetchall():
        db.execute("DELETE FROM markers WHERE at_ns <= ?", (at_ns,))


class MarkerReader(Database):
    """The part of `Reader` that is about markers."""

    def markers(self, *, since_ns: int, until_ns: int, limit: int) -> list[Marker]:
        found: list[Marker] = []
        for kind in MarkerKind:
            rows = self.query(
                f"SELECT {_COLUMNS} FROM markers",
                ["kind = ?", "at_ns >= ?", "at_ns <= ?"],
                [kind, since_ns, until_ns, limit],
                "ORDER BY at_ns DESC LIMIT ?",
            )
            found += readable(rows, _marker, of="markers")
        return sorted(found, key=lambda each: (each.at_ns, each.id))


def _marker(row: Sequence[Any]) -> Marker:
    id_, kind, at_ns, engine, text = row
    return Marker(id=id_, kind=MarkerKind(kind), at_ns=at_ns, engine=engine, text=text)
