"""The launches of engines in SQLite: how each went. There are few, and each has a row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

from kvtrail.tracer.liveness.engine import CausingFinding, EngineState, Launch
from kvtrail.tracer.store.sqlite.database import Database, an_object, from_text, readable, to_text

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS launches (
    engine TEXT NOT NULL, launch TEXT NOT NULL, state TEXT NOT NULL, began_ns INTEGER NOT NULL, ended_ns INTEGER,
    ended_by TEXT, lost INTEGER NOT NULL, cause TEXT, settings TEXT NOT NULL DEFAULT '{}', PRIMARY KEY (engine, launch)
) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS launches_by_end ON launches (ended_ns)",
)
_SELECT = "SELECT engine, launch, state, began_ns, ended_ns, ended_by, lost, cause, settings FROM launches"


def put(db: sqlite3.Connection, launches: Iterable[Launch]) -> None:
    """Store new and changed launches, within the open transaction."""
    db.executemany(
        "INSERT OR REPLACE INTO launches VALUES (?,?,?,?,?,?,?,?,?)",
        (
            (*astuple(launch)[:-2], None if launch.cause is None else to_text(launch.cause), to_text(launch.settings))
            for launch in launches
        ),
    )


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Forget the launches that ended before, and those of engines that are forgotten."""
    db.execute("DELETE FROM launches WHERE ended_ns < ? OR engine NOT IN (SELECT engine FROM engines)", (before_ns,))


def _launch(row: Sequence[Any]) -> Launch:
    engine, launch, state, began_ns, ended_ns, ended_by, lost, cause, settings = row
    return Launch(
        engine=engine, launch=launch, state=EngineState(state), began_ns=began_ns, ended_ns=ended_ns, ended_by=ended_by,
        lost=lost, cause=None if cause is None else CausingFinding(**from_text(cause)), settings=an_object(settings),
    )  # fmt: skip


class LaunchReader(Database):
    """The part of `Reader` that is about launches."""

    def launches(self, *, since_ns: int | None = None, until_ns: int | None = None) -> list[Launch]:
        ends = {"ended_ns >= ?": since_ns, "ended_ns <= ?": until_ns}
        given = {condition: at_ns for condition, at_ns in ends.items() if at_ns is not None}
        return readable(self.query(_SELECT, [*given], [*given.values()]), _launch, of="launches")

    def heard(self) -> dict[str, int]:
        return dict(self.query("SELECT engine, last_ns FROM engines"))
