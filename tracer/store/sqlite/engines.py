"""The engines in SQLite: what each says of itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvtrail.tracer.model import engines
from kvtrail.tracer.store.sqlite.database import Database, an_object, readable, to_text

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS engines (
    number INTEGER PRIMARY KEY, engine TEXT NOT NULL UNIQUE, about TEXT NOT NULL, last_ns INTEGER NOT NULL
)""",
)


def put(db: sqlite3.Connection, about: Mapping[str, Mapping[str, str]]) -> None:
    """Store the descriptions of engines, within the open transaction. A later recorder of an engine replaces the fields of an
    earlier one; fields that it leaves out stay."""
    now_ns = time.time_ns()
    db.executemany(
        "INSERT INTO engines (engine, about, last_ns) VALUES (?, ?, ?) ON CONFLICT (engine) DO UPDATE SET"
        " about = json_patch(about, excluded.about), last_ns = excluded.last_ns",
        (
            (engine, to_text({field: text for field, text in description.items() if text}), now_ns)
            for engine, description in about.items()
        ),
    )


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Drop the engines that were not received since."""
    db.execute("DELETE FROM engines WHERE last_ns < ?", (before_ns,))


class EngineReader(Database):
    """The part of `Reader` that is about engines."""

    def names(self) -> dict[str, str]:
        return engines.names(self.descriptions())

    def engines(self) -> dict[str, dict[str, Any]]:
        query = "SELECT engine, count(*) FROM requests INDEXED BY requests_open"
        open_requests = self.query(query, ["ended_ns IS NULL"], (), "GROUP BY engine")
        return engines.listed(self.descriptions(), dict(open_requests))

    def descriptions(self) -> dict[str, dict[str, str]]:
        """By engine, in the order in which they came: what it says of itself."""
        return dict(readable(self.query("SELECT engine, about FROM engines ORDER BY number"), _described, of="engines"))


def _described(row: Sequence[Any]) -> tuple[str, dict[str, str]]:
    engine, about = row
    return engine, engines.described({}) | an_object(about)
