"""What engines did a moment ago, in SQLite: sums by kind of event for each stretch of a few seconds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from kvtrail.tracer.store import ACTIVITY_S, Activity, Amounts
from kvtrail.tracer.store.request_rows import LARGEST
from kvtrail.tracer.store.sqlite.database import Database, whole_sum

SCHEMA = (
    f"""CREATE TABLE IF NOT EXISTS activity (
    at_s INTEGER NOT NULL, engine TEXT NOT NULL, kind TEXT NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in Amounts._fields)}, PRIMARY KEY (at_s, engine, kind)
) WITHOUT ROWID""",
)
_SUMS = ", ".join(f"{name} = min({name} + excluded.{name}, {LARGEST})" for name in Amounts._fields)


def add(db: sqlite3.Connection, amounts: Iterable[tuple[Activity, Amounts]]) -> None:
    """Add to the sums, within the open transaction."""
    db.executemany(
        f"INSERT INTO activity (at_s, engine, kind, {', '.join(Amounts._fields)}) VALUES (?,?,?,?,?,?,?)"
        f" ON CONFLICT DO UPDATE SET {_SUMS}",
        ((*where, *(min(amount, LARGEST) for amount in what)) for where, what in amounts),
    )


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Drop the stretches that began before."""
    db.execute("DELETE FROM activity WHERE at_s < ?", (before_ns // 10**9,))


class EventSumsReader(Database):
    """The part of `Reader` that is about recent activity."""

    def activity(self, *, since_ns: int) -> dict[str, dict[str, int]]:
        sums = ", ".join(map(whole_sum, Amounts._fields))
        rows = self.query(
            f"SELECT kind, {sums} FROM activity",
            ["at_s >= ?"],
            [since_ns // 10**9 // ACTIVITY_S * ACTIVITY_S],
            "GROUP BY kind",
        )
        return {kind: dict(zip(("count", *Amounts._fields[1:]), amounts, strict=True)) for kind, *amounts in rows}
