"""Requests in SQLite: counted, and found by how they stand, however many there are.

The counts are kept by triggers, in the transaction of the change itself: whoever writes, prunes, or is killed half-way, they
are those of the rows. They are told apart by status and verdict, so they also say how many rows a filter will fit.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.store.sqlite import ids
from kvtrail.tracer.store.sqlite.ids import Query
from kvtrail.tracer.store.sqlite.texts import from_text, to_text

_COLUMNS = (
    "request", "engine", "external", "trace_id", "status", "verdict", "findings", "started_ns", "last_ns", "ended_ns",
    "lookups", "longest_match", "loaded", "stored", "epoch",
)  # fmt: skip
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
"""What is counted, and what a row adds to it."""


def _count(row: str) -> str:
    values = ", ".join(says.format(row=row) for says in _COUNTED.values())
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTED)
    return (
        f"INSERT INTO request_totals (status, verdict, {', '.join(_COUNTED)}) VALUES ({row}.status, {row}.verdict, {values})"
        f" ON CONFLICT (status, verdict) DO UPDATE SET {added};"
    )


def _discount(row: str) -> str:
    taken = ", ".join(f"{name} = {name} - ({says.format(row=row)})" for name, says in _COUNTED.items())
    return f"UPDATE request_totals SET {taken} WHERE status = {row}.status AND verdict = {row}.verdict;"


def _recount() -> str:
    changed = ", ".join(
        f"{name} = {name} + ({says.format(row='new')}) - ({says.format(row='old')})" for name, says in _COUNTED.items()
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
    {_count("new")}
    {ids.entering("new")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_change AFTER UPDATE ON requests WHEN NOT {_MOVED} BEGIN
    {_recount()}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_move AFTER UPDATE ON requests WHEN {_MOVED} BEGIN
    {_discount("old")}
    {_count("new")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_are_renamed AFTER UPDATE ON requests
WHEN old.external IS NOT new.external BEGIN
    {ids.leaving("old")}
    {ids.entering("new")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_leave AFTER DELETE ON requests BEGIN
    {_discount("old")}
    {ids.leaving("old")}
END""",
)
SCHEMA = (*_TABLES, *_INDEXES, *_TRIGGERS)
_FOR_EVER = ("request", "engine", "external", "trace_id", "started_ns")
"""What hardly ever changes: an update that leaves it alone leaves its indexes alone."""
_UPDATE = (
    f"UPDATE requests SET {', '.join(f'{name} = :{name}' for name in (*_COLUMNS, 'account') if name not in _FOR_EVER)}"
    f" WHERE {' AND '.join(f'{name} = :{name}' for name in _FOR_EVER)}"
)
_UPSERT = (
    f"INSERT INTO requests ({', '.join(_COLUMNS)}, account) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}, :account)"
    " ON CONFLICT (request, engine) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in (*_COLUMNS[2:], "account"))
)
_PROMPTS = 1_000
_FEW = 20_000
"""So many rows can be looked through one by one."""
_LATEST_NS = 2**63 - 1


def upgrade(db: sqlite3.Connection) -> None:
    """Turn the requests of a store of schema 1, which had neither counts nor an index of parts, into these."""
    db.execute("ALTER TABLE requests RENAME TO requests_1")
    for statement in _TABLES:
        db.execute(statement)
    names = ", ".join((*_COLUMNS, "account"))
    # Numbers count up with time, here as everywhere: the search relies on it.
    db.execute(f"INSERT INTO requests ({names}) SELECT {names} FROM requests_1 ORDER BY started_ns")
    db.execute("DROP TABLE requests_1")
    sums = ", ".join(f"sum({says.format(row='r')})" for says in _COUNTED.values())
    db.execute(
        f"INSERT INTO request_totals (status, verdict, {', '.join(_COUNTED)})"
        f" SELECT status, verdict, {sums} FROM requests r GROUP BY status, verdict"
    )
    db.execute(ids.ENTER_ALL)


def put(db: sqlite3.Connection, accounts: Iterable[Mapping[str, Any]]) -> None:
    """Store accounts, new ones and changed ones, within the transaction that is open."""
    for account in accounts:
        row = {**{name: account[name] for name in _COLUMNS}, "account": to_text(account)}
        if not db.execute(_UPDATE, row).rowcount:
            db.execute(_UPSERT, row)


def totals(query: Query) -> dict[str, int]:
    """See `Reader.totals`, less the findings."""
    (row,) = query(f"SELECT {', '.join(f'coalesce(sum({name}), 0)' for name in _COUNTED)} FROM request_totals", [], [])
    return dict(zip(_COUNTED, map(int, row), strict=True))


def find(
    query: Query,
    *,
    search: str = "",
    status: str = "",
    verdict: str = "",
    limit: int = 100,
    before_ns: int | None = None,
) -> list[dict[str, Any]]:
    """See `Reader.requests`."""
    until_ns = _LATEST_NS if before_ns is None else before_ns
    if not (search or status or verdict):
        rows = query(
            "SELECT account FROM requests",
            ["started_ns < ?"],
            [until_ns],
            f"ORDER BY started_ns DESC LIMIT {int(limit)}",
        )
        return [from_text(account) for (account,) in rows]
    where = {f"{name} = ?": value for name, value in (("status", status), ("verdict", verdict)) if value}
    kinds = query("SELECT verdict, status, requests FROM request_totals", [*where], [*where.values()])
    if where and (not search or _is_frequent(query, search, kinds, until_ns)):
        numbers = _of_kinds(query, [(v, s) for v, s, _ in kinds], search, until_ns=until_ns, limit=limit)
    else:
        numbers = ids.numbers(query, search, where=where, until_ns=until_ns, limit=limit)
    rows = query(
        "SELECT account FROM json_each(?) AS n CROSS JOIN requests ON number = n.value",
        [],
        [to_text(numbers)],
        f"ORDER BY started_ns DESC LIMIT {int(limit)}",
    )
    return [from_text(account) for (account,) in rows]


def _is_frequent(query: Query, search: str, kinds: Sequence[tuple[str, str, int]], until_ns: int) -> bool:
    """Whether it is in the ids of more requests than there are of these verdicts and statuses, and these can be looked
    through one by one."""
    of_kinds = sum(count for *_, count in kinds)
    return of_kinds <= _FEW and len(ids.by_part(query, search, where={}, until_ns=until_ns, limit=of_kinds)) == of_kinds


def _of_kinds(query: Query, kinds: Iterable[tuple[str, str]], search: str, *, until_ns: int, limit: int) -> list[int]:
    """The latest of these verdicts and statuses: of each a range of the index, which is in the order of time."""
    conditions, values = ids.condition(search)
    found = [
        query(
            "SELECT started_ns, number FROM requests INDEXED BY requests_by_kind",
            ["verdict = ?", "status = ?", "started_ns < ?", *conditions],
            [*kind, until_ns, *values],
            f"ORDER BY started_ns DESC LIMIT {int(limit)}",
        )
        for kind in kinds
    ]
    return [number for _, number in heapq.nlargest(limit, (row for rows in found for row in rows))]


def one(query: Query, request: str, *, engine: str = "") -> dict[str, Any] | None:
    """See `Reader.request`."""
    latest = "ORDER BY +started_ns DESC LIMIT 1"
    for condition in (
        "(request = ?1 OR external = ?1)",
        ids.traced("?1"),
        "number IN (SELECT value FROM json_each(?3))",
    ):
        values = [request, engine]
        if "?3" in condition:
            values.append(to_text(_of_prompts(query, request, engine)))
        rows = query("SELECT account FROM requests", [condition, "(engine = ?2 OR ?2 = '')"], values, latest)
        if rows:
            return dict(from_text(rows[0][0]))
    return None


def _of_prompts(query: Query, call: str, engine: str) -> list[int]:
    """The requests of a call to an OpenAI api: its caller saw `cmpl-1`, and vLLM's external ids of its prompts are
    `cmpl-1-0`, `cmpl-1-1`, ...; of very many the last that came."""
    begun = f"{call}-"
    rows = query(
        "SELECT number FROM requests INDEXED BY requests_by_external",
        # All that begin so: a dot comes after the dash.
        ["external >= ?", "external < ?", "(engine = ? OR ? = '')"],
        [begun, f"{call}.", engine, engine],
        f"LIMIT {_PROMPTS + 1}",
    )
    if len(rows) <= _PROMPTS:
        return [number for (number,) in rows]
    where = {"instr(external, ?) = 1": begun, **({"engine = ?": engine} if engine else {})}
    return ids.by_part(query, begun, where=where, until_ns=_LATEST_NS, limit=_PROMPTS)


def few(query: Query, *, search: str, status: str, until_ns: int, most: int) -> list[tuple[str, str]] | None:
    """Ids and engines of all requests with this status and with `search` in one of their ids that had begun by `until_ns`;
    None where they are more than `most`."""
    kinds = query("SELECT verdict, status, requests FROM request_totals", ["status = ?"], [status])
    if status and sum(count for *_, count in kinds) <= most:
        numbers = _of_kinds(query, [(v, s) for v, s, _ in kinds], "", until_ns=until_ns + 1, limit=most)
    elif search:
        numbers = ids.by_part(query, search, where={}, until_ns=until_ns + 1, limit=most + 1)
    else:
        return None
    if len(numbers) > most:
        return None
    found = "SELECT request, engine FROM json_each(?) AS n CROSS JOIN requests ON number = n.value"
    return query(found, [], [to_text(numbers)])
