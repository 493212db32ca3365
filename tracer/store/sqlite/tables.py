"""The tables whose rows are written and dropped independently: all except the log and requests with their measures."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.tracer.model.engines import DESCRIPTION
from kvtrail.tracer.savings.minute_sums import HOUR_S, MINUTE_S
from kvtrail.tracer.savings.waste import WastedTokens
from kvtrail.tracer.store import MAX_RECEIPTS, engines, findings
from kvtrail.tracer.store.queries import to_text
from kvtrail.tracer.store.request_rows import LARGEST

MAX_HANDOFFS = 100_000
"""Maximum number of stored events of hand-offs, the latest: about 15,000 hand-offs, and some tens of MB."""
MAX_MARKERS = 20_000
_S = 10**9
Rows = Iterable[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        name: its name.
        columns: the written columns, in order.
        create: the definition after the name.
        rows: converts parts of a batch to rows.
        merge: the action if a row with its key exists.
        old: the condition for rows older than a time in Unix nanoseconds, which are dropped; empty if none are.
        since: the condition for rows that a rebuild makes again from a time on.
        most: the maximum number of rows; only the latest are kept. The table then has a rowid.
        indexes: the definitions of its indexes.
    """

    name: str
    columns: tuple[str, ...]
    create: str
    rows: Callable[[Any], Rows]
    merge: str = ""
    old: str = "at_ns < ?"
    since: str = ""
    most: int | None = None
    indexes: tuple[str, ...] = ()

    @property
    def schema(self) -> tuple[str, ...]:
        """The statements that create the table and its indexes."""
        return (f"CREATE TABLE {self.name} {self.create}", *self.indexes)

    def put(self, db: sqlite3.Connection, parts: Any) -> None:
        """Store parts of a batch, within the open transaction."""
        verb, end = ("INSERT", f"ON CONFLICT DO {self.merge}") if self.merge else ("INSERT OR REPLACE", "")
        places = ", ".join("?" * len(self.columns))
        insert = f"{verb} INTO {self.name} ({', '.join(self.columns)}) VALUES ({places}) {end}"
        db.executemany(insert, self.rows(parts))

    def forget(self, db: sqlite3.Connection, *, since_ns: int) -> None:
        """Drop the rows that a rebuild restores from the log, within the open transaction."""
        db.execute(f"DELETE FROM {self.name} WHERE {self.since}", (since_ns,))

    def prune(self, db: sqlite3.Connection, *, before_ns: int) -> None:
        """Drop rows that are too old or too many, within the open transaction."""
        if self.old:
            db.execute(f"DELETE FROM {self.name} WHERE {self.old}", (before_ns,))
        if self.most is not None:
            last = f"SELECT max(rowid) FROM {self.name}"
            db.execute(f"DELETE FROM {self.name} WHERE rowid <= ({last}) - ?", (self.most,))


def drop_oldest_findings(db: sqlite3.Connection, count: int) -> int:
    """Drop this many findings, the least recently seen; returns how many were dropped."""
    oldest = "SELECT id FROM findings INDEXED BY findings_in_time ORDER BY last_ns LIMIT ?"
    return db.execute(f"DELETE FROM findings WHERE id IN ({oldest})", (count,)).rowcount


def _engine_rows(described: Any) -> Rows:
    now_ns = time.time_ns()
    return ((engine, *(about.get(name, "") for name in DESCRIPTION), now_ns, now_ns) for engine, about in described)


def _recorder_rows(seen: Any) -> Rows:
    now_ns = time.time_ns()
    return ((recorder, numbers, now_ns) for recorder, numbers in seen)


ENGINES = Table(
    "engines",
    ("engine", *DESCRIPTION, "first_ns", "last_ns"),
    f"""(
    engine TEXT PRIMARY KEY, {", ".join(f"{name} TEXT NOT NULL" for name in DESCRIPTION)},
    first_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL
) WITHOUT ROWID""",
    _engine_rows,
    # A later recorder of an engine replaces an earlier one's values, except for its empty fields.
    merge=f"""UPDATE SET last_ns = excluded.last_ns,
    {", ".join(f"{name} = coalesce(nullif(excluded.{name}, ''), {name})" for name in DESCRIPTION)}""",
    old="last_ns < ?",
)
LAUNCHES = Table(
    "launches",
    engines.LAUNCH_COLUMNS,
    """(
    engine TEXT NOT NULL, launch TEXT NOT NULL, state TEXT NOT NULL, began_ns INTEGER NOT NULL, ended_ns INTEGER,
    ended_by TEXT, lost INTEGER NOT NULL, cause TEXT NOT NULL, settings TEXT NOT NULL, PRIMARY KEY (engine, launch)
) WITHOUT ROWID""",
    lambda launches: map(engines.launch_row, launches),
    old="ended_ns < ? OR engine NOT IN (SELECT engine FROM engines)",
)
MARKERS = Table(
    "markers",
    engines.MARKER_COLUMNS,
    "(id TEXT PRIMARY KEY, kind TEXT NOT NULL, at_ns INTEGER NOT NULL, engine TEXT NOT NULL, text TEXT NOT NULL)",
    lambda markers: map(engines.marker_row, markers),
    merge="NOTHING",
    most=MAX_MARKERS,
    indexes=("CREATE INDEX markers_in_time ON markers (kind, at_ns)",),
)
FINDINGS = Table(
    "findings",
    findings.COLUMNS,
    """(
    id TEXT PRIMARY KEY, rule TEXT NOT NULL, severity TEXT NOT NULL, engine TEXT NOT NULL, connector TEXT NOT NULL,
    request TEXT NOT NULL, count INTEGER NOT NULL, healed INTEGER NOT NULL, first_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL, body TEXT NOT NULL
) WITHOUT ROWID""",
    lambda found: map(findings.row_of, found),
    since="last_ns >= ?",
    indexes=(
        # It covers all counts of findings: their rows are long, and are kept longer than those of requests.
        "CREATE INDEX findings_in_time ON findings (last_ns, rule, severity, engine, connector, request, first_ns)",
        "CREATE INDEX findings_by_request ON findings (request)",
    ),
)
HANDOFFS = Table(
    "handoffs",
    ("at_ns", "is_own", "body"),
    "(number INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, is_own INTEGER NOT NULL, body TEXT NOT NULL)",
    lambda events: ((event.at_ns, event.is_own, to_text(event)) for event in events),
    since="is_own AND at_ns >= ?",
    most=MAX_HANDOFFS,
)
SAVINGS = Table(
    "savings",
    ("at_s", "step_s", "engine", "connector", "epoch", "measure", "value"),
    """(
    at_s INTEGER NOT NULL, step_s INTEGER NOT NULL, engine TEXT NOT NULL, connector TEXT NOT NULL,
    epoch INTEGER NOT NULL, measure TEXT NOT NULL, value INTEGER NOT NULL,
    PRIMARY KEY (step_s, at_s, engine, connector, epoch, measure)
) WITHOUT ROWID""",
    # Per minute and per hour: a range of a week reads hours, and is as fast as a range of six hours.
    lambda cells: ((at_s, step_s, *rest, min(value, LARGEST)) for (step_s, at_s, *rest), value in cells),
    merge=f"UPDATE SET value = min(value + excluded.value, {LARGEST})",
    old=f"step_s IN ({MINUTE_S}, {HOUR_S}) AND at_s < ? / {_S} - {HOUR_S}",
    since=f"at_s + step_s > ? / {_S}",
)
WASTE = Table(
    "waste",
    WastedTokens._fields,
    """(
    at_ns INTEGER NOT NULL, engine TEXT NOT NULL, request TEXT NOT NULL, epoch INTEGER NOT NULL, cause TEXT NOT NULL,
    tier TEXT NOT NULL, tenant TEXT NOT NULL, prefix TEXT NOT NULL, start INTEGER NOT NULL, tokens INTEGER NOT NULL,
    admissions INTEGER NOT NULL, PRIMARY KEY (at_ns, engine, request, epoch, cause, tier)
) WITHOUT ROWID""",
    lambda rows: (row._replace(tokens=min(row.tokens, LARGEST)) for row in rows),
    since="at_ns >= ?",
)
RECEIPTS = Table(
    # The digests of stored OTLP requests: a sender that receives no answer sends the same bytes again.
    "receipts",
    ("digest",),
    "(number INTEGER PRIMARY KEY, digest BLOB NOT NULL)",
    lambda digests: ((digest,) for digest in digests),
    old="",
    most=MAX_RECEIPTS,
)
RECORDERS = Table(
    # The numbers of stored events: a Collector in between may send the same events in other requests.
    "recorders",
    ("recorder", "seen", "last_ns"),
    "(recorder TEXT PRIMARY KEY, seen TEXT NOT NULL, last_ns INTEGER NOT NULL) WITHOUT ROWID",
    _recorder_rows,
    old="last_ns < ?",
)
DERIVED = (FINDINGS, SAVINGS, WASTE, HANDOFFS)
"""The tables that are derived from the log."""
FOR_LONG = (RECEIPTS, RECORDERS, ENGINES, LAUNCHES)
"""The tables that are kept twice as long as spans: an engine may not report for long."""
EVERY = (*DERIVED, MARKERS, *FOR_LONG)
