"""The sums of what the offload saved, in SQLite, by the minute and by the hour.

Both are written with the batch that they sum up. A range of a week therefore reads hours, and takes as long as six hours do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from kvtrail.tracer.savings.minute_sums import HOUR_S, MINUTE_S, SavingsRow, SumKey, by_step, interval_s
from kvtrail.tracer.store.request_rows import LARGEST
from kvtrail.tracer.store.sqlite.database import Database, from_text, whole_sum

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS efficiency (
    step_s INTEGER NOT NULL, at_s INTEGER NOT NULL, engine TEXT NOT NULL, connector TEXT NOT NULL,
    epoch INTEGER NOT NULL, measure TEXT NOT NULL, value INTEGER NOT NULL,
    PRIMARY KEY (step_s, at_s, engine, connector, epoch, measure)
) WITHOUT ROWID""",
)


def add(db: sqlite3.Connection, cells: Iterable[tuple[SumKey, int]]) -> None:
    """Add to the sums, within the open transaction."""
    db.executemany(
        "INSERT INTO efficiency (step_s, at_s, engine, connector, epoch, measure, value) VALUES (?,?,?,?,?,?,?)"
        f" ON CONFLICT DO UPDATE SET value = min(value + excluded.value, {LARGEST})",
        ((*key, min(value, LARGEST)) for key, value in by_step(cells).items()),
    )


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the sums of stretches that ended since then, within the open transaction."""
    db.execute("DELETE FROM efficiency WHERE at_s + step_s > ?", (since_ns // 10**9,))


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Drop the sums of stretches that ended before."""
    for step_s in (MINUTE_S, HOUR_S):
        db.execute("DELETE FROM efficiency WHERE step_s = ? AND at_s < ?", (step_s, before_ns // 10**9 - step_s))


class SavingsReader(Database):
    """The part of `Reader` that is about savings."""

    def savings(self, *, since_ns: int, until_ns: int, stretch_s: int = 1) -> list[SavingsRow]:
        step_s = interval_s(since_ns, until_ns)
        stretch_s = max(step_s, int(stretch_s))
        # Summed before it is grouped into JSON: a range of hours has many more minutes than stretches.
        sums = (
            f"SELECT at_s / {stretch_s} * {stretch_s} AS at_s, engine, connector, epoch, measure,"
            f" {whole_sum('value')} AS value"
            " FROM efficiency WHERE step_s = ? AND at_s >= ? AND at_s < ? GROUP BY 1, 2, 3, 4, 5"
        )
        rows = self.query(
            f"SELECT at_s, engine, connector, epoch, json_group_object(measure, value) FROM ({sums})",
            (),
            [step_s, since_ns // 10**9 // step_s * step_s, -(-until_ns // 10**9)],
            "GROUP BY at_s, engine, connector, epoch",
        )
        return [
            SavingsRow(at_s=at_s, engine=engine, connector=connector, epoch=epoch, measures=from_text(measures))
            for at_s, engine, connector, epoch, measures in rows
        ]
