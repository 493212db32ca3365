"""Silences in SQLite. There are few, and none is deleted: the ended ones stay listed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.model.silences import Silence
from kvtrail.tracer.store import MAX_SILENCES
from kvtrail.tracer.store.sqlite.database import Database, Query, an_object, readable, to_text

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS silences (
    id TEXT PRIMARY KEY, ends_ns INTEGER, written_ns INTEGER NOT NULL, body TEXT NOT NULL
) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS silences_by_end ON silences (coalesce(ends_ns, 9223372036854775807), written_ns)",
)


def put(db: sqlite3.Connection, silences: Sequence[Silence]) -> None:
    """Store new and changed silences, within the open transaction; of two with the same id the later one stays."""
    db.executemany(
        "INSERT INTO silences (id, ends_ns, written_ns, body) VALUES (?,?,?,?) ON CONFLICT (id) DO UPDATE SET"
        " ends_ns = excluded.ends_ns, written_ns = excluded.written_ns, body = excluded.body"
        " WHERE excluded.written_ns > silences.written_ns",
        ((each.id, each.ends_ns, each.written_ns, to_text(each.as_dict())) for each in silences),
    )


def read(query: Query) -> list[Silence]:
    """The silences, those that end last first."""
    rows = query(
        "SELECT body FROM silences",
        tail=f"ORDER BY coalesce(ends_ns, 9223372036854775807) DESC, written_ns DESC LIMIT {MAX_SILENCES}",
    )
    return readable(rows, _silence, of="silences")


class SilenceReader(Database):
    """The part of `Reader` that is about silences."""

    def silences(self) -> list[Silence]:
        return read(self.query)


def _silence(row: Sequence[Any]) -> Silence:
    return Silence(**an_object(row[0]))
