"""Requests in SQLite: counted, and found by their ids, status and verdict, however many there are.

Triggers update the counts within the transaction that changes a request, so the counts match the rows whoever writes,
prunes, or is killed half-way. They are grouped by status and verdict, so they also say how many rows a filter selects.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.store.sqlite import ids
from kvtrail.tracer.store.sqlite.database import LARGEST, Database, from_text, to_text, whole_sum

_COLUMNS = (
    "request", "engine", "external", "trace_id", "status", "verdict", "findings", "started_ns", "last_ns", "ended_ns",
    "lookups", "longest_match", "loaded", "stored", "epoch",
)  # fmt: skip
_SUMS = ("loaded", "stored")
_COUNTED = {
    "requests": "1",
    "running": "{row}.ended_ns IS NULL",
    "lookups": "{row}.lookups",
    "matched": "{row}.longest_match",
    "loaded": "{row}.loaded",
    "stored": "{row}.stored",
    "preemptions": "{row}.epoch",
    "drifting": "{row}.findings > 0",
}
"""The counts, and what a row adds to each."""


def _add(row: str) -> str:
    values = ", ".join(value.format(row=row) for value in _COUNTED.values())
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTED)
    return (
        f"INSERT INTO request_totals (status, verdict, {', '.join(_COUNTED)}) VALUES ({row}.status, {row}.verdict, {values})"
        f" ON CONFLICT (status, verdict) DO UPDATE SET {added};"
    )


def _subtract(row: str) -> str:
    rest = ", ".join(f"{name} = {name} - ({value.format(row=row)})" for name, value in _COUNTED.items())
    return f"UPDATE request_totals SET {rest} WHERE status = {row}.status AND verdict = {row}.verdict;"


def _adjust() -> str:
    changed = ", ".join(
        f"{name} = {name} + ({value.format(row='new')}) - ({value.format(row='old')})"
        for name, value in _COUNTED.items()
    )
    return f"UPDATE request_totals SET {changed} WHERE status = new.status AND verdict = new.verdict;"


_MOVED = "(new.status != old.status OR new.verdict != old.verdict)"
_TABLES = (
    """CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY,
    request TEXT NOT NULL, engine TEXT NOT NULL, external TEXT NOT NULL, trace_id TEXT NOT NULL,
    status TEXT NOT NULL, verdict TEXT NOT NULL, findings INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER,
    lookups INTEGER NOT NULL, longest_match INTEGER NOT NULL, loaded INTEGER NOT NULL,
    stored INTEGER NOT NULL, epoch INTEGER NOT NULL,
    account TEXT NOT NULL
)""",
    f"""CREATE TABLE IF NOT EXISTS request_totals (
    status TEXT NOT NULL, verdict TEXT NOT NULL, {", ".join(f"{name} INTEGER NOT NULL" for name in _COUNTED)},
    PRIMARY KEY (status, verdict)
) WITHOUT ROWID""",
    *ids.SCHEMA,
)
_INDEXES = (
    "CREATE UNIQUE INDEX IF NOT EXISTS requests_by_id ON requests (request, engine)",
    "CREATE INDEX IF NOT EXISTS requests_by_start ON requests (started_ns)",
    "CREATE INDEX IF NOT EXISTS requests_by_end ON requests (last_ns)",
    "CREATE INDEX IF NOT EXISTS requests_by_external ON requests (external, engine)",
    "CREATE INDEX IF NOT EXISTS requests_by_kind ON requests (verdict, status, started_ns)",
    "CREATE INDEX IF NOT EXISTS requests_open ON requests (engine) WHERE ended_ns IS NULL",
)
_TRIGGERS = (
    f"""CREATE TRIGGER IF NOT EXISTS requests_come AFTER INSERT ON requests BEGIN
    {_add("new")}
    {ids.insert_statement("new")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_change AFTER UPDATE ON requests WHEN NOT {_MOVED} BEGIN
    {_adjust()}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_move AFTER UPDATE ON requests WHEN {_MOVED} BEGIN
    {_subtract("old")}
    {_add("new")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_are_renamed AFTER UPDATE ON requests
WHEN old.external IS NOT new.external BEGIN
    {ids.delete_statement("old")}
    {ids.insert_statement("new")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_leave AFTER DELETE ON requests BEGIN
    {_subtract("old")}
    {ids.delete_statement("old")}
END""",
)
SCHEMA = (*_TABLES, *_INDEXES, *_TRIGGERS)
_STABLE = ("request", "engine", "external", "trace_id", "started_ns")
"""Columns that hardly ever change. An update that does not set them leaves their indexes alone."""
_UPDATE = (
    f"UPDATE requests SET {', '.join(f'{name} = :{name}' for name in (*_COLUMNS, 'account') if name not in _STABLE)}"
    f" WHERE {' AND '.join(f'{name} = :{name}' for name in _STABLE)}"
)
_UPSERT = (
    f"INSERT INTO requests ({', '.join(_COLUMNS)}, account) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}, :account)"
    " ON CONFLICT (request, engine) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in (*_COLUMNS[2:], "account"))
)
_MAX_PROMPTS = 1_000
_MAX_SCANNED = 20_000
"""Rows that may be looked through one by one."""
_LATEST_NS = 2**63 - 1


def upgrade(db: sqlite3.Connection) -> None:
    """Convert the requests of schema 1, which had neither counts nor an index of parts of ids."""
    db.execute("ALTER TABLE requests RENAME TO requests_1")
    for statement in _TABLES:
        db.execute(statement)
    names = ", ".join((*_COLUMNS, "account"))
    # Numbers must grow with time: the search relies on it.
    db.execute(f"INSERT INTO requests ({names}) SELECT {names} FROM requests_1 ORDER BY started_ns")
    db.execute("DROP TABLE requests_1")
    sums = ", ".join(whole_sum(value.format(row="r")) for value in _COUNTED.values())
    db.execute(
        f"INSERT INTO request_totals (status, verdict, {', '.join(_COUNTED)})"
        f" SELECT status, verdict, {sums} FROM requests r GROUP BY status, verdict"
    )
    db.execute(ids.INSERT_ALL)


def put(db: sqlite3.Connection, accounts: Iterable[Mapping[str, Any]]) -> None:
    """Store new and changed accounts, within the open transaction."""
    for account in accounts:
        row = {**{name: account[name] for name in _COLUMNS}, "account": to_text(account)}
        row |= {name: min(row[name], LARGEST) for name in _SUMS}
        if not db.execute(_UPDATE, row).rowcount:
            db.execute(_UPSERT, row)


def prune(db: sqlite3.Connection, *, before_ns: int) -> None:
    """Drop the requests whose last event came before."""
    db.execute("DELETE FROM requests WHERE last_ns < ?", (before_ns,))


class RequestReader(Database):
    """The part of `Reader` that is about requests."""

    def totals(self) -> dict[str, int]:
        sums = ", ".join(map(whole_sum, _COUNTED))
        (row,) = self.query(f"SELECT {sums}, (SELECT count(*) FROM findings) FROM request_totals")
        return dict(zip((*_COUNTED, "findings"), row, strict=True))

    def requests(
        self, *, search: str = "", status: str = "", verdict: str = "", limit: int = 100, before_ns: int | None = None
    ) -> list[dict[str, Any]]:
        until_ns = _LATEST_NS if before_ns is None else before_ns
        latest = f"ORDER BY started_ns DESC LIMIT {int(limit)}"
        if not (search or status or verdict):
            rows = self.query("SELECT account FROM requests", ["started_ns < ?"], [until_ns], latest)
            return [from_text(account) for (account,) in rows]
        where = {f"{name} = ?": value for name, value in (("status", status), ("verdict", verdict)) if value}
        kinds = self.query("SELECT verdict, status, requests FROM request_totals", [*where], [*where.values()])
        if where and (not search or self._is_frequent(search, kinds, until_ns)):
            numbers = self._of_kinds(kinds, search, until_ns=until_ns, limit=limit)
        else:
            numbers = ids.search_all(self.query, search, where=where, until_ns=until_ns, limit=limit)
        rows = self.query(
            "SELECT account FROM json_each(?) AS n CROSS JOIN requests ON number = n.value",
            (),
            [to_text(numbers)],
            latest,
        )
        return [from_text(account) for (account,) in rows]

    def request(self, request: str, *, engine: str = "") -> dict[str, Any] | None:
        for condition in (
            "(request = ?1 OR external = ?1)",
            ids.in_trace("?1"),
            "number IN (SELECT value FROM json_each(?3))",
        ):
            values = [request, engine]
            if "?3" in condition:
                values.append(to_text(self._of_call(request, engine)))
            rows = self.query(
                "SELECT account FROM requests",
                [condition, "(engine = ?2 OR ?2 = '')"],
                values,
                "ORDER BY +started_ns DESC LIMIT 1",
            )
            if rows:
                return dict(from_text(rows[0][0]))
        return None

    def few_requests(self, *, search: str, status: str, until_ns: int, limit: int) -> list[tuple[str, str]] | None:
        """Id and engine of all requests that have this status, have `search` in one of their ids, and had started by
        `until_ns`; None if there are more than `limit`."""
        kinds = self.query("SELECT verdict, status, requests FROM request_totals", ["status = ?"], [status])
        if status and sum(count for *_, count in kinds) <= limit:
            numbers = self._of_kinds(kinds, "", until_ns=until_ns + 1, limit=limit)
        elif search:
            numbers = ids.search_ids(self.query, search, where={}, until_ns=until_ns + 1, limit=limit + 1)
        else:
            return None
        if len(numbers) > limit:
            return None
        by_number = "SELECT request, engine FROM json_each(?) AS n CROSS JOIN requests ON number = n.value"
        return self.query(by_number, (), [to_text(numbers)])

    def _is_frequent(self, search: str, kinds: Sequence[tuple[str, str, int]], until_ns: int) -> bool:
        """Whether more ids contain `search` than there are requests of these kinds, which are few enough to scan."""
        count = sum(count for *_, count in kinds)
        return count <= _MAX_SCANNED and count == len(
            ids.search_ids(self.query, search, where={}, until_ns=until_ns, limit=count)
        )

    def _of_kinds(self, kinds: Iterable[tuple[str, str, int]], search: str, *, until_ns: int, limit: int) -> list[int]:
        """Numbers of the latest requests of these kinds. Each verdict and status is a range of an index sorted by time."""
        conditions = [ids.PART_OR_TRACE] if search else []
        rows = [
            row
            for verdict, status, _ in kinds
            for row in self.query(
                "SELECT started_ns, number FROM requests INDEXED BY requests_by_kind",
                ["verdict = ?", "status = ?", "started_ns < ?", *conditions],
                [verdict, status, until_ns, *([search] * 3 if search else [])],
                f"ORDER BY started_ns DESC LIMIT {int(limit)}",
            )
        ]
        return [number for _, number in heapq.nlargest(limit, rows)]

    def _of_call(self, call: str, engine: str) -> list[int]:
        """Numbers of the requests of one call to an OpenAI API. Its caller saw `cmpl-1`, while vLLM's external ids of the
        prompts are `cmpl-1-0`, `cmpl-1-1`, and so on. If there are very many, the last to arrive."""
        prefix = f"{call}-"
        rows = self.query(
            "SELECT number FROM requests INDEXED BY requests_by_external",
            # All that begin with the prefix: a dot sorts right after a dash.
            ["external >= ?", "external < ?", "(engine = ? OR ? = '')"],
            [prefix, f"{call}.", engine, engine],
            f"LIMIT {_MAX_PROMPTS + 1}",
        )
        if len(rows) <= _MAX_PROMPTS:
            return [number for (number,) in rows]
        where = {"instr(external, ?) = 1": prefix, **({"engine = ?": engine} if engine else {})}
        return ids.search_ids(self.query, prefix, where=where, until_ns=_LATEST_NS, limit=_MAX_PROMPTS)
