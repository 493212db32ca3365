"""What a store consists of: its tables, and whether a file has these and nothing of somebody else's that runs by itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing

from kvtrail.tracer.store.sqlite import (
    engines,
    event_sums,
    findings,
    handoffs,
    launches,
    log,
    markers,
    measures,
    outbox,
    receipts,
    requests,
    restart,
    savings,
    waste,
)

TABLES = (
    log, receipts, engines, launches, requests, measures, findings, handoffs, markers, savings, waste, event_sums,
    outbox, restart,
)  # fmt: skip
_RUNS = "type IN ('trigger', 'view') OR sql LIKE 'CREATE VIRTUAL%'"
_PLAIN = "type = 'table' AND sql LIKE 'CREATE TABLE%' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"


def create(db: sqlite3.Connection) -> None:
    """Create what is missing, within the open transaction."""
    for table in TABLES:
        for statement in table.SCHEMA:
            db.execute(statement)


def is_complete(db: sqlite3.Connection) -> bool:
    """Whether nothing is missing."""
    parts = "SELECT type, name FROM sqlite_schema"
    with closing(_today()) as today:
        return {*today.execute(parts)} <= {*db.execute(parts)}


def foreign(db: sqlite3.Connection) -> list[str]:
    """The triggers, views and virtual tables of a file that no kvtrail made, in words: they would run code of their own
    as the store is read and written. One with a name of ours and another text is none of ours."""
    with closing(_today()) as today:
        ours = set(today.execute(f"SELECT type, name, sql FROM sqlite_schema WHERE {_RUNS}"))
    found = db.execute(f"SELECT type, name, sql FROM sqlite_schema WHERE {_RUNS}").fetchall()
    return [f"the {type_} {name!r}" for type_, name, sql in found if (type_, name, sql) not in ours]


def difference(db: sqlite3.Connection, changes: Iterable[Callable[[sqlite3.Connection], None]]) -> str | None:
    """Where the tables of a file, once these changes were made to them, are not those of a store, in words; None if they
    are. The file itself is not changed."""
    tables = {name: _columns(db, name) for (name,) in db.execute(f"SELECT name FROM sqlite_schema WHERE {_PLAIN}")}
    with closing(_today()) as today, closing(sqlite3.connect(":memory:")) as changed:
        expected = {
            name: _columns(today, name) for (name,) in today.execute(f"SELECT name FROM sqlite_schema WHERE {_PLAIN}")
        }
        virtual = {name for (name,) in today.execute("SELECT name FROM pragma_table_list WHERE type = 'shadow'")}
        try:
            for name in tables.keys() - virtual:
                columns = ", ".join('"{}"'.format(column.replace('"', '""')) for column in tables[name])
                changed.execute(f'CREATE TABLE "{name}" ({columns})')
            for change in changes:
                change(changed)
            create(changed)
        except sqlite3.Error as error:
            return str(error)
        for name in sorted(expected.keys() - virtual):
            have, want = list(_columns(changed, name)), list(expected[name])
            of_another_kind = [
                column for column, kind in tables.get(name, {}).items() if expected[name].get(column, kind) != kind
            ]
            if have != want or of_another_kind:
                differing = of_another_kind or sorted({*have} ^ {*want}) or have
                return f"the table {name} differs in {', '.join(differing)}"
    return None


def _today() -> sqlite3.Connection:
    """An empty store in memory."""
    db = sqlite3.connect(":memory:")
    create(db)
    return db


def _columns(db: sqlite3.Connection, table: str) -> dict[str, tuple[str, int, int]]:
    """By column, in order: its type, whether it is never NULL, and its place in the primary key."""
    rows = db.execute('SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (table,))
    return {name: (type_, is_filled, key) for name, type_, is_filled, key in rows}
