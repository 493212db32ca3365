"""Makes a store of today's schema of an older one, schema by schema, within the open transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.liveness.outcome import ending_of
from kvtrail.tracer.model.conditions import ENDING, UNKNOWN
from kvtrail.tracer.store.request_rows import body_of
from kvtrail.tracer.store.sqlite import bodies, findings, measures, requests
from kvtrail.tracer.store.sqlite.database import from_text

_COLUMNS_OF_5 = (
    "request", "engine", "external", "trace_id", "status", "verdict", "findings", "started_ns", "last_ns", "ended_ns",
    "lookups", "longest_match", "loaded", "stored", "epoch",
)  # fmt: skip
_OF_LANES = {
    "connector": "''", "complete": "1", "tier": "NULL", "reach": "NULL", "changes": "'[]'",
    "transfers": "'[]'",
}  # fmt: skip
"""The columns that a request has of its lane, and their values without one."""
_BLANK = {**Account("", "").as_dict(), "unknown": None, "times": {}, "tokens": {}, "prefix": ""}
"""What schema 5 left out of an account where it had nothing else to say."""


def _add_settings(db: sqlite3.Connection) -> None:
    """Make schema 4: launches have settings."""
    db.execute("ALTER TABLE launches ADD COLUMN settings TEXT NOT NULL DEFAULT '{}'")


def _add_endings(db: sqlite3.Connection) -> None:
    """Make schema 5. How requests ended is in their rows; only a rebuild knows their prefixes."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'request_measures'").fetchall():
        return
    for column in measures.LATER:
        db.execute(f"ALTER TABLE request_measures ADD COLUMN {column} TEXT NOT NULL DEFAULT '{UNKNOWN}'")
    db.create_function("ending_of", 2, lambda status, reason: str(ending_of(status, reason)), deterministic=True)
    of_row = (
        f"SELECT ending_of(status, {_member('outcome')}) FROM requests AS r WHERE r.number = request_measures.number"
    )
    db.execute(f"UPDATE request_measures SET {ENDING} = coalesce(({of_row}), {ENDING})")


def _make_schema_6(db: sqlite3.Connection) -> None:
    """Make schema 6: a lane is part of its request's row, the account is there as a whole, compressed, and findings have the
    names that their rules have today."""
    compress = bodies.packer().compress

    def body(*values: Any) -> bytes:
        *columns, rest = values
        try:
            account = {**_BLANK, **from_text(rest), **dict(zip(_COLUMNS_OF_5, columns, strict=True))}
            return compress(body_of(account))
        except (TypeError, ValueError):
            return b""  # damaged, as it was

    db.create_function("body_of", -1, body)
    added = {
        "outcome": _member("outcome"),
        **{name: f"coalesce({_member(name)}, 0)" for name in ("waited_ns", "recomputed", "loads")},
        **{
            name: f"coalesce((SELECT {name} FROM lanes WHERE lanes.number = requests.number), {otherwise})"
            for name, otherwise in _OF_LANES.items()
        },
        "body": f"body_of({', '.join(_COLUMNS_OF_5)}, account)",
    }
    kept = ", ".join(name for name in ("number", *_COLUMNS_OF_5, "after_span") if name not in added)
    db.execute(requests.TABLE.replace(" requests (", " requests_of_6 ("))
    db.execute(
        f"INSERT INTO requests_of_6 ({kept}, {', '.join(added)}) SELECT {kept}, {', '.join(added.values())} FROM requests"
    )
    db.execute("DROP TABLE requests")  # with its indexes and triggers, which are made again
    db.execute("DROP TABLE lanes")
    db.execute("ALTER TABLE requests_of_6 RENAME TO requests")
    findings.rename_rules(db)


def _member(name: str) -> str:
    """The SQL for a member of an account; NULL where that is damaged."""
    return f"CASE WHEN json_valid(account) THEN account ->> '{name}' END"


CHANGES: dict[int, Callable[[sqlite3.Connection], None]] = {3: _add_settings, 4: _add_endings, 5: _make_schema_6}
"""What makes the next schema of a store of this one."""
