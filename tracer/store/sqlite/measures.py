"""Measures of requests, in a narrow table ordered by their start: durations, tokens by cause, the tenant, the prefix, and the
ending.

The table is separate from the accounts, so that requests of a time range can be counted without reading accounts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import Selection, measures
from kvtrail.tracer.store.measures import COLUMNS, NUMBERS, TOKENS, WORDS
from kvtrail.tracer.store.queries import all_of, to_text
from kvtrail.tracer.store.request_rows import RequestRow
from kvtrail.tracer.store.sqlite.database import Database, whole_sum

SCHEMA = (
    f"""CREATE TABLE request_measures (
    number INTEGER NOT NULL,  -- the request's
    started_ns INTEGER NOT NULL, engine TEXT NOT NULL, {", ".join(f"{name} TEXT NOT NULL" for name in WORDS)},
    {", ".join(f"{name} INTEGER" for name in (*NUMBERS, *TOKENS))}, tokens TEXT NOT NULL,
    PRIMARY KEY (started_ns, number)
) WITHOUT ROWID""",
    """CREATE TRIGGER request_measures_move AFTER UPDATE OF started_ns ON requests
WHEN new.started_ns != old.started_ns BEGIN
    DELETE FROM request_measures WHERE started_ns = old.started_ns AND number = old.number;
END""",
    """CREATE TRIGGER request_measures_leave AFTER DELETE ON requests BEGIN
    DELETE FROM request_measures WHERE started_ns = old.started_ns AND number = old.number;
END""",
)
_PUT = (
    f"INSERT OR REPLACE INTO request_measures (number, {', '.join(COLUMNS)})"
    f" SELECT number, {', '.join('?' * len(COLUMNS))} FROM requests WHERE request = ? AND engine = ?"
)
_values = itemgetter(*COLUMNS, "request", "engine")
_TOKENS = "CASE WHEN json_valid(tokens) THEN tokens END"


def put(db: sqlite3.Connection, rows: Iterable[RequestRow]) -> None:
    """Store the measures of new and changed requests, within the open transaction; the requests are already stored."""
    measured = (row.measures for row in rows if row.measures is not None)
    db.executemany(_PUT, [_values({**each, "tokens": to_text(each["tokens"])}) for each in measured])


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the measures of requests that began since then, within the open transaction."""
    db.execute("DELETE FROM request_measures WHERE started_ns >= ?", (since_ns,))


class MeasureReader(measures.MeasureReader, Database):
    """The part of `Reader` for the measures of requests."""

    of_cause = f"coalesce({_TOKENS} ->> '{{}}', 0)"

    def met(self, where: Sequence[Condition]) -> tuple[str, dict[str, Any]]:
        conditions, values = all_of(measures.conditions(where, self.of_cause))
        of_row = "m.started_ns = requests.started_ns AND m.number = requests.number"
        return f"EXISTS (SELECT 1 FROM request_measures AS m {conditions} AND {of_row})", values

    def tokens(self, which: Selection) -> dict[str, int]:
        selected, values = self.selected(which, f"CROSS JOIN json_each({_TOKENS}) AS t")
        return dict(self.ask(f"SELECT t.key, {whole_sum('t.value')} {selected} GROUP BY 1", **values))
