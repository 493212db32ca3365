"""Stores of earlier schemas, made of one of today's."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from kvtrail.tracer.store.sqlite import bodies

_TABLES_OF_5 = (
    """CREATE TABLE requests (
    number INTEGER PRIMARY KEY,
    request TEXT NOT NULL, engine TEXT NOT NULL, external TEXT NOT NULL, trace_id TEXT NOT NULL,
    status TEXT NOT NULL, verdict TEXT NOT NULL, findings INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER,
    lookups INTEGER NOT NULL, longest_match INTEGER NOT NULL, loaded INTEGER NOT NULL,
    stored INTEGER NOT NULL, epoch INTEGER NOT NULL,
    account TEXT NOT NULL, after_span INTEGER NOT NULL
)""",
    """CREATE TABLE lanes (
    number INTEGER PRIMARY KEY,  -- the request's
    request TEXT NOT NULL, engine TEXT NOT NULL, external TEXT NOT NULL, connector TEXT NOT NULL,
    status TEXT NOT NULL, verdict TEXT NOT NULL, findings INTEGER NOT NULL, complete INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER,
    tier INTEGER NOT NULL, reach INTEGER NOT NULL, changes TEXT NOT NULL, transfers TEXT NOT NULL
)""",
)
_OF_BOTH = (
    "number", "request", "engine", "external", "trace_id", "status", "verdict", "findings", "started_ns", "last_ns",
    "ended_ns", "lookups", "longest_match", "loaded", "stored", "epoch", "after_span",
)  # fmt: skip
_OF_LANES = (
    "number", "request", "engine", "external", "connector", "status", "verdict", "findings", "complete", "started_ns",
    "last_ns", "ended_ns", "tier", "reach", "changes", "transfers",
)  # fmt: skip


def make_schema_5(db: sqlite3.Connection) -> None:
    """Lanes have a table, and an account is text."""
    both, lanes = ", ".join(_OF_BOTH), ", ".join(_OF_LANES)
    rows = db.execute(f"SELECT body, {both} FROM requests").fetchall()
    drawn = db.execute(f"SELECT {lanes} FROM requests WHERE tier IS NOT NULL").fetchall()
    db.execute("DROP TABLE requests")
    for table in _TABLES_OF_5:
        db.execute(table)
    db.executemany(f"INSERT INTO lanes ({lanes}) VALUES ({', '.join('?' * len(_OF_LANES))})", drawn)
    db.executemany(
        f"INSERT INTO requests (account, {both}) VALUES ({', '.join('?' * (len(_OF_BOTH) + 1))})",
        (_row(body, row) for body, *row in rows),
    )
    db.execute("PRAGMA user_version=5")


def make_schema_4(db: sqlite3.Connection) -> None:
    """Requests are not measured by their prefixes and endings."""
    make_schema_5(db)
    for column in ("prefix", "ending"):
        db.execute(f"ALTER TABLE request_measures DROP COLUMN {column}")
    db.execute("PRAGMA user_version=4")


def make_schema_3(db: sqlite3.Connection) -> None:
    """Launches have no settings, requests no measures, and nothing is marked."""
    make_schema_4(db)
    db.execute("ALTER TABLE launches DROP COLUMN settings")
    db.execute("DROP TABLE markers")
    db.execute("DROP TABLE request_measures")
    db.execute("PRAGMA user_version=3")


def _row(body: bytes, row: list[Any]) -> tuple[Any, ...]:
    account: dict[str, Any] = json.loads(bodies.unpacked(body))
    account["outcome"] = account.pop("reason")
    columns = (account.get(name, value) for name, value in zip(_OF_BOTH, row, strict=True))
    return (json.dumps(account), *columns)
