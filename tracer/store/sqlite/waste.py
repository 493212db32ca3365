"""What admissions computed again although a cache had held it, in SQLite: a row for each, by cause and tier."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.savings.waste import WastedTokens, WasteFilter, WasteSum
from kvtrail.tracer.store.request_rows import LARGEST
from kvtrail.tracer.store.sqlite.database import Database, whole_sum

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS waste (
    at_ns INTEGER NOT NULL, engine TEXT NOT NULL, request TEXT NOT NULL, epoch INTEGER NOT NULL, cause TEXT NOT NULL,
    tier TEXT NOT NULL, tenant TEXT NOT NULL, prefix TEXT NOT NULL, start INTEGER NOT NULL, tokens INTEGER NOT NULL,
    admissions INTEGER NOT NULL, PRIMARY KEY (at_ns, engine, request, epoch, cause, tier)
) WITHOUT ROWID""",
)
_COLUMNS = ", ".join(WastedTokens._fields)
_TOKENS = WastedTokens._fields.index("tokens")


def put(db: sqlite3.Connection, rows: Iterable[WastedTokens]) -> None:
    """Store rows, within the open transaction; one that is there is replaced."""
    db.executemany(
        f"INSERT OR REPLACE INTO waste ({_COLUMNS}) VALUES ({', '.join('?' * len(WastedTokens._fields))})",
        ((*row[:_TOKENS], min(row.tokens, LARGEST), *row[_TOKENS + 1 :]) for row in rows),
    )


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop what was admitted since then, within the open transaction; the log has it."""
    db.execute("DELETE FROM waste WHERE at_ns >= ?", (since_ns,))


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Drop what was admitted before, within the open transaction."""
    db.execute("DELETE FROM waste WHERE at_ns < ?", (before_ns,))


class WasteReader(Database):
    """The part of `Reader` that is about wasted tokens."""

    def wasted(self, by: Sequence[By], which: WasteFilter, *, limit: int) -> list[WasteSum]:
        columns, (conditions, values) = ", ".join(by), _conditions(which)
        rows = self.query(
            f"SELECT {columns}, {whole_sum('tokens')} AS summed, {whole_sum('admissions')}, min(start), max(at_ns)"
            " FROM waste",
            conditions,
            [*values, limit],
            f"GROUP BY {columns} ORDER BY summed DESC, {columns} LIMIT ?",
        )
        return [WasteSum(tuple(row[: len(by)]), *row[len(by) :]) for row in rows]

    def wasted_from(self, which: WasteFilter, *, limit: int) -> int:
        conditions, values = ["at_ns >= ?", "at_ns < ?"], [which.since_ns, which.until_ns, limit]
        rows = self.query("SELECT at_ns FROM waste", conditions, values, "ORDER BY at_ns DESC LIMIT 1 OFFSET ?")
        return rows[0][0] + 1 if rows else which.since_ns


def _conditions(which: WasteFilter) -> tuple[list[str], list[Any]]:
    given: dict[str, list[Any]] = {"at_ns >= ?": [which.since_ns], "at_ns < ?": [which.until_ns]}
    given |= {f"{name} = ?": [value] for name in ("engine", "tenant", "cause") if (value := getattr(which, name))}
    for column, values in (("engine", which.engines), ("prefix", which.prefixes)):
        if values is not None:
            given[f"{column} IN ({', '.join('?' * len(values))})"] = [*values]
    return [*given], [value for values in given.values() for value in values]
