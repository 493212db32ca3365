"""What was received, so that nothing counts twice: requests that are sent again, and events with known numbers.

A sender that hears no answer sends the same bytes again. A Collector in between may send the same events in other requests:
those are known by their recorders' numbers.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvtrail.tracer.ledger.ordering import SeenNumbers
from kvtrail.tracer.store import MAX_RECEIPTS
from kvtrail.tracer.store.sqlite.database import Database, readable

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS receipts (number INTEGER PRIMARY KEY, digest BLOB NOT NULL)",
    """CREATE TABLE IF NOT EXISTS recorders (
    recorder TEXT PRIMARY KEY, seen TEXT NOT NULL, last_ns INTEGER NOT NULL
) WITHOUT ROWID""",
)


def put(db: sqlite3.Connection, digest: bytes, seen: Mapping[str, str]) -> None:
    """Note a request, and the numbers of its recorders, within the open transaction."""
    if digest:
        db.execute("INSERT INTO receipts (digest) VALUES (?)", (digest,))
    now_ns = time.time_ns()
    db.executemany(
        "INSERT OR REPLACE INTO recorders (recorder, seen, last_ns) VALUES (?, ?, ?)",
        ((recorder, text, now_ns) for recorder, text in seen.items()),
    )


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Forget recorders that wrote nothing since, and all but the last requests."""
    db.execute("DELETE FROM recorders WHERE last_ns < ?", (before_ns,))
    db.execute("DELETE FROM receipts WHERE number <= (SELECT max(number) FROM receipts) - ?", (MAX_RECEIPTS,))


class ReceiptReader(Database):
    """What was received, as a start reads it."""

    def receipts(self) -> list[bytes]:
        """The digests of the last requests that were stored, in order."""
        rows = self.query(f"SELECT digest FROM receipts ORDER BY number DESC LIMIT {MAX_RECEIPTS}")
        return [digest for (digest,) in reversed(rows)]

    def seen(self) -> dict[str, tuple[str, int]]:
        """By recorder: the numbers of its events that are stored, as `SeenNumbers.as_text` gives them, and when the last of
        them came; Unix nanoseconds."""
        return dict(readable(self.query("SELECT recorder, seen, last_ns FROM recorders"), _numbers, of="recorders"))


def _numbers(row: Sequence[Any]) -> tuple[str, tuple[str, int]]:
    recorder, text, last_ns = row
    SeenNumbers.from_text(text)
    return recorder, (text, last_ns)
