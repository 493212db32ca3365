"""The events of the recent hand-offs in SQLite, in the order in which they entered the ledger: those of the own engines, and
what another sidecar has of the same hand-offs. A restart enters them again."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.store.handoffs import HandoffRow
from kvtrail.tracer.store.sqlite.database import Database, from_text, readable, to_text

MAX_KEPT = 100_000
"""The latest that are kept: about 15,000 hand-offs, and some tens of MB."""
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS handoffs (
    number INTEGER PRIMARY KEY, engine TEXT NOT NULL, recorder TEXT NOT NULL, sequence INTEGER NOT NULL, kind TEXT NOT NULL,
    at_ns INTEGER NOT NULL, request TEXT NOT NULL, keys TEXT NOT NULL, lost_number INTEGER NOT NULL, loads INTEGER NOT NULL,
    is_own INTEGER NOT NULL, body TEXT NOT NULL
)""",
)
_COLUMNS = ", ".join(HandoffRow._fields)
_KEYS = HandoffRow._fields.index("keys")


def put(db: sqlite3.Connection, rows: Sequence[HandoffRow]) -> None:
    """Store events, and drop the oldest beyond `MAX_KEPT`, within the open transaction."""
    db.executemany(
        f"INSERT INTO handoffs ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        ((*row[:_KEYS], to_text(list(row.keys)), *row[_KEYS + 1 :]) for row in rows),
    )
    db.execute("DELETE FROM handoffs WHERE number <= (SELECT max(number) FROM handoffs) - ?", (MAX_KEPT,))


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the own events since then, within the open transaction; the log has them."""
    db.execute("DELETE FROM handoffs WHERE is_own AND at_ns >= ?", (since_ns,))


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Drop the events that ended before, within the open transaction."""
    db.execute("DELETE FROM handoffs WHERE at_ns < ?", (before_ns,))


class HandoffReader(Database):
    """The events of the recent hand-offs."""

    def handoffs(self) -> list[HandoffRow]:
        """All of them, in the order in which they entered the ledger."""
        rows = self.query(f"SELECT {_COLUMNS} FROM handoffs", tail="ORDER BY number")
        return readable(rows, _row, of="handoffs")


def _row(row: Sequence[Any]) -> HandoffRow:
    about = HandoffRow(*row)
    return about._replace(keys=tuple(from_text(row[_KEYS])), is_own=bool(about.is_own))
