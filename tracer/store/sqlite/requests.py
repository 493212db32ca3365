"""Requests in SQLite: counted, and found by their ids, status and verdict, however many there are.

Triggers update the counts within the transaction that changes a request, so the counts match the rows whoever writes,
prunes, or is killed half-way. They are grouped by status and verdict, so they also say how many rows a filter selects.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.ledger.lanes import Lane
from kvtrail.tracer.liveness.outcome import ABORTED, ERROR, FINISHED
from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import Sort, StoreError
from kvtrail.tracer.store.damage import readable
from kvtrail.tracer.store.queries import to_text
from kvtrail.tracer.store.request_rows import COLUMNS, RequestRow, StoredRequest, tier_of
from kvtrail.tracer.store.sqlite import bodies, ids, measures, traces
from kvtrail.tracer.store.sqlite.database import Database, Query, whole_sum

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
TABLE = """CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY,
    request TEXT NOT NULL, engine TEXT NOT NULL, external TEXT NOT NULL, trace_id TEXT NOT NULL, connector TEXT NOT NULL,
    status TEXT NOT NULL, outcome TEXT, verdict TEXT NOT NULL, findings INTEGER NOT NULL, complete INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER,
    lookups INTEGER NOT NULL, longest_match INTEGER NOT NULL, loaded INTEGER NOT NULL,
    stored INTEGER NOT NULL, epoch INTEGER NOT NULL, waited_ns INTEGER NOT NULL, recomputed INTEGER NOT NULL,
    loads INTEGER NOT NULL, tier INTEGER, reach INTEGER, changes TEXT NOT NULL, transfers TEXT NOT NULL,
    after_span INTEGER NOT NULL, body BLOB NOT NULL
)"""
_TABLES = (
    TABLE,
    f"""CREATE TABLE IF NOT EXISTS request_totals (
    status TEXT NOT NULL, verdict TEXT NOT NULL, {", ".join(f"{name} INTEGER NOT NULL" for name in _COUNTED)},
    PRIMARY KEY (status, verdict)
) WITHOUT ROWID""",
    *ids.SCHEMA,
)
_UNLIKE = "instr(request, external) != 1"
_AFTER_ALL = f"char({0x10FFFF})"
_OTHERWISE = f"status = '{FINISHED}' AND outcome IN ('{ABORTED}', '{ERROR}')"
"""Requests that finished otherwise than their callers asked: few, so that their reasons are counted in an index of their
own."""
_INDEXES = (
    "CREATE UNIQUE INDEX IF NOT EXISTS requests_by_id ON requests (request, engine)",
    "CREATE INDEX IF NOT EXISTS requests_by_start ON requests (started_ns)",
    # vLLM's own id usually begins with the caller's, and is found by that.
    f"CREATE INDEX IF NOT EXISTS requests_by_external ON requests (external, engine) WHERE {_UNLIKE}",
    "CREATE INDEX IF NOT EXISTS requests_by_kind ON requests (verdict, status, started_ns)",
    "CREATE INDEX IF NOT EXISTS requests_open ON requests (engine) WHERE ended_ns IS NULL",
    f"CREATE INDEX IF NOT EXISTS requests_ended_otherwise ON requests (started_ns, engine, outcome) WHERE {_OTHERWISE}",
    "CREATE INDEX IF NOT EXISTS requests_by_lane ON requests (tier, reach, started_ns, last_ns, ended_ns)"
    " WHERE tier IS NOT NULL",
)
_TRIGGERS = (
    f"""CREATE TRIGGER IF NOT EXISTS requests_come AFTER INSERT ON requests BEGIN
    {_add("new")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_change AFTER UPDATE ON requests WHEN NOT {_MOVED} BEGIN
    {_adjust()}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_move AFTER UPDATE ON requests WHEN {_MOVED} BEGIN
    {_subtract("old")}
    {_add("new")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_are_renamed AFTER UPDATE ON requests
WHEN old.external IS NOT new.external AND {ids.IS_INDEXED} BEGIN
    {ids.DELETE_OLD}
    {ids.INSERT_NEW}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_leave AFTER DELETE ON requests BEGIN
    {_subtract("old")}
END""",
    f"""CREATE TRIGGER IF NOT EXISTS requests_are_forgotten AFTER DELETE ON requests WHEN {ids.IS_INDEXED} BEGIN
    {ids.DELETE_OLD}
END""",
)
SCHEMA = (*_TABLES, *_INDEXES, *_TRIGGERS)
_STABLE = ("request", "engine", "external", "trace_id", "started_ns")
"""Columns that hardly ever change. An update that does not set them leaves their indexes alone."""
_PUT = (*COLUMNS, "tier", "reach", "changes", "transfers", "body")
_UPDATE = (
    f"UPDATE requests SET {', '.join(f'{name} = ?{at}' for at, name in enumerate(_PUT, 1) if name not in _STABLE)}"
    f" WHERE {' AND '.join(f'{name} = ?{_PUT.index(name) + 1}' for name in _STABLE)}"
)
_UPSERT = (
    f"INSERT INTO requests ({', '.join(_PUT)}, after_span)"
    f" VALUES ({', '.join('?' * len(_PUT))}, (SELECT settled FROM log_end))"
    " ON CONFLICT (request, engine) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in _PUT[2:])
)
_NO_LANE = (None, None, "[]", "[]")
OPEN_REACH = 63
"""The reach of requests that have not ended: they extend to the present."""
LONGEST_REACH = 25
"""Of requests that have ended: 2**25 seconds are more than a year."""
_MAX_PROMPTS = 1_000
_MAX_BEGINNING = 1_000
"""The most ids with the same prefix that are read."""
_RANDOM = 8
"""Characters that vLLM appends to the caller's id, after a dash."""
_MAX_SCANNED = 20_000
"""Rows that may be looked through one by one, or sorted."""
_LATEST_NS = 2**63 - 1
_FIRST = {
    Sort.WAITING: "waited_ns DESC,",
    Sort.RECOMPUTED: "recomputed DESC,",
    Sort.LOADS: "loads DESC,",
    Sort.FINDINGS: "findings DESC,",
    Sort.DURATION: "last_ns - started_ns DESC,",
}
"""What requests are sorted by before their start."""
STORED = "engine, status, outcome, body"


def stored_request(row: Sequence[Any]) -> StoredRequest:
    """The request in a row of `STORED`. Raises ValueError if it is damaged."""
    engine, status, outcome, body = row
    return StoredRequest(engine, status, outcome, bodies.unpacked(body))


def put(db: sqlite3.Connection, rows: Iterable[RequestRow]) -> None:
    """Store new and changed requests, within the open transaction."""
    compress = bodies.packer().compress
    for row in rows:
        lane = _NO_LANE if row.lane is None else _lane_columns(row.lane)
        values = (*map(row.columns.__getitem__, COLUMNS), *lane, compress(row.body))
        if not db.execute(_UPDATE, values).rowcount:
            db.execute(_UPSERT, values)


def _lane_columns(lane: Lane) -> tuple[Any, ...]:
    """Its tier, reach, changes and transfers."""
    reach = OPEN_REACH
    if lane.ended_ns is not None:
        lasted_s = max(0, lane.last_ns - lane.started_ns) // 10**9
        reach = min(int(lasted_s).bit_length(), LONGEST_REACH)
    return tier_of(lane), reach, to_text(lane.changes), to_text(lane.transfers)


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the requests that began since then, within the open transaction; what is made of the rows is made again."""
    for trigger in ("requests_leave", "requests_are_forgotten"):  # what they change may be damaged
        db.execute(f"DROP TRIGGER {trigger}")
    db.execute("DELETE FROM requests WHERE started_ns >= ?", (since_ns,))
    for table in ("request_totals", "request_grams", "request_ids", "request_ids_end"):
        db.execute(f"DROP TABLE {table}")
    for statement in SCHEMA:
        db.execute(statement)
    sums = ", ".join(f"sum({value.format(row='requests')})" for value in _COUNTED.values())
    db.execute(f"INSERT INTO request_totals SELECT status, verdict, {sums} FROM requests GROUP BY status, verdict")


def prune(db: sqlite3.Connection, *, after: int, limit: int, before_ns: int) -> int | None:
    """Of this many requests that follow number `after`, drop those with the last event before; returns the last of these
    numbers, or None where no older requests follow."""
    rows = db.execute(
        "SELECT number, started_ns, last_ns FROM requests WHERE number > ? ORDER BY number LIMIT ?",
        (after, limit),
    ).fetchall()
    old = [(number,) for number, _, last_ns in rows if last_ns < before_ns]
    db.executemany("DELETE FROM requests WHERE number = ?", old)
    ids.shorten(db)
    # Numbers grow with time, nearly.
    return rows[-1][0] if any(started_ns < before_ns for _, started_ns, _ in rows) else None


class RequestReader(Database):
    """The part of `Reader` that is about requests."""

    def totals(self) -> dict[str, int]:
        sums = ", ".join(map(whole_sum, _COUNTED))
        (row,) = self.query(f"SELECT {sums}, (SELECT count(*) FROM findings) FROM request_totals")
        return dict(zip((*_COUNTED, "findings"), row, strict=True))

    def requests(
        self,
        *,
        search: str = "",
        status: str = "",
        verdict: str = "",
        engines: Sequence[str] | None = None,
        limit: int = 100,
        since_ns: int | None = None,
        before_ns: int | None = None,
        where: Sequence[Condition] = (),
        sort: Sort = Sort.LATEST,
    ) -> list[StoredRequest]:
        until_ns = _LATEST_NS if before_ns is None else before_ns
        # Only by their start they can be found in order; to sort by anything else, all candidates are read.
        most = limit if sort is Sort.LATEST else _MAX_SCANNED
        order = f"ORDER BY {_FIRST.get(sort, '')} started_ns DESC LIMIT {int(limit)}"
        kind = {f"{name} = ?": value for name, value in (("status", status), ("verdict", verdict)) if value}
        narrowed: dict[str, Any] = {} if since_ns is None else {"started_ns >= ?": since_ns}
        narrowed |= {} if engines is None else {"engine IN (SELECT value FROM json_each(?))": to_text([*engines])}
        narrowed |= measures.met(where)
        if not (search or kind):
            before = {"started_ns < ?": until_ns, **narrowed}
            latest = f"ORDER BY started_ns DESC LIMIT {int(most)}"
            if sort is Sort.LATEST:
                rows = self.query(f"SELECT {STORED} FROM requests", [*before], [*before.values()], latest)
                return readable(rows, stored_request, of="requests")
            found = self.query("SELECT number FROM requests", [*before], [*before.values()], latest)
            numbers = [number for (number,) in found]
        else:
            numbers = self._numbers(search, kind, narrowed, until_ns=until_ns, limit=most)
        rows = self.query(
            f"SELECT {STORED} FROM json_each(?) AS n CROSS JOIN requests ON number = n.value",
            (),
            [to_text(numbers)],
            order,
        )
        return readable(rows, stored_request, of="requests")

    def _numbers(
        self, search: str, where: Mapping[str, Any], narrowed: Mapping[str, Any], *, until_ns: int, limit: int
    ) -> list[int]:
        """Numbers of requests that have `search` in one of their ids and meet the conditions `where`, which are about status
        and verdict, and `narrowed`."""
        kinds = self.query("SELECT verdict, status, requests FROM request_totals", [*where], [*where.values()])
        if where and (not search or self._is_frequent(search, kinds, until_ns)):
            return self._of_kinds(kinds, search, where=narrowed, until_ns=until_ns, limit=limit)
        return ids.search_all(self.query, search, where={**where, **narrowed}, until_ns=until_ns, limit=limit)

    def outcomes(self, of: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str | None]]:
        rows = self.query(
            "SELECT engine, request, status, outcome FROM json_each(?) AS r CROSS JOIN requests"
            " ON request = r.value ->> 1 AND engine = r.value ->> 0",
            (),
            [to_text([*of])],
        )
        return {(engine, request): (status, outcome) for engine, request, status, outcome in rows}

    def outcome_counts(
        self, *, since_ns: int, before_ns: int, engines: Sequence[str] | None = None
    ) -> list[tuple[str, str, str | None, int]]:
        conditions = ["started_ns >= ?", "started_ns < ?"]
        values: list[Any] = [since_ns, before_ns]
        if engines is not None:
            conditions, values = (
                [*conditions, "engine IN (SELECT value FROM json_each(?))"],
                [*values, to_text([*engines])],
            )
        counts: list[tuple[str, str, str | None, int]] = []
        finished = 0
        for verdict, status in self.query("SELECT verdict, status FROM request_totals WHERE requests > 0"):
            what = "count(*)" if status == FINISHED else "engine, outcome, count(*)"
            rows = self.query(
                f"SELECT {what} FROM requests INDEXED BY requests_by_kind",
                ["verdict = ?", "status = ?", *conditions],
                [verdict, status, *values],
                "" if status == FINISHED else "GROUP BY 1, 2",
            )
            if status == FINISHED:
                finished += rows[0][0]
            else:
                counts += [(engine, status, outcome, count) for engine, outcome, count in rows]
        otherwise = self.query(
            "SELECT outcome, count(*) FROM requests INDEXED BY requests_ended_otherwise",
            [_OTHERWISE, *conditions],
            values,
            "GROUP BY 1",
        )
        counts += [("", FINISHED, outcome, count) for outcome, count in otherwise]
        return [*counts, ("", FINISHED, None, finished - sum(count for _, count in otherwise))]

    def request(self, request: str, *, engine: str = "") -> StoredRequest | None:
        for find in (self._of_id, traces.requests_in, self._of_call):
            numbers = to_text(find(self.query, request))
            rows = self.query(
                f"SELECT {STORED} FROM requests",
                ["number IN (SELECT value FROM json_each(?))", "(engine = ? OR ? = '')"],
                [numbers, engine, engine],
                "ORDER BY +started_ns DESC LIMIT 1",
            )
            if rows and not (found := readable(rows, stored_request, of="requests")):
                raise StoreError(f"the row of {request!r} is damaged; `kvtrail store rebuild` makes it again")
            if rows:
                return found[0]
        return None

    def few_requests(self, *, search: str, status: str, until_ns: int, limit: int) -> list[int] | None:
        """The numbers of all requests that have this status, have `search` in one of their ids, and had started by
        `until_ns`; None if there are more than `limit`."""
        kinds = self.query("SELECT verdict, status, requests FROM request_totals", ["status = ?"], [status])
        if status and sum(count for *_, count in kinds) <= limit:
            numbers = self._of_kinds(kinds, "", where={}, until_ns=until_ns + 1, limit=limit)
        elif search:
            numbers = ids.search_ids(self.query, search, where={}, until_ns=until_ns + 1, limit=limit + 1)
        else:
            return None
        return None if len(numbers) > limit else numbers

    def _is_frequent(self, search: str, kinds: Sequence[tuple[str, str, int]], until_ns: int) -> bool:
        """Whether more ids contain `search` than there are requests of these kinds, which are few enough to scan."""
        count = sum(count for *_, count in kinds)
        return count <= _MAX_SCANNED and count == len(
            ids.search_ids(self.query, search, where={}, until_ns=until_ns, limit=count)
        )

    def _of_kinds(
        self,
        kinds: Iterable[tuple[str, str, int]],
        search: str,
        *,
        where: Mapping[str, Any],
        until_ns: int,
        limit: int,
    ) -> list[int]:
        """Numbers of the latest requests of these kinds that meet the conditions of `where`, each with its value. Each
        verdict and status is a range of an index sorted by time."""
        conditions = [ids.PART_OR_TRACE] if search else []
        rows = [
            row
            for verdict, status, _ in kinds
            for row in self.query(
                "SELECT started_ns, number FROM requests INDEXED BY requests_by_kind",
                ["verdict = ?", "status = ?", "started_ns < ?", *where, *conditions],
                [verdict, status, until_ns, *where.values(), *([search] * 3 if search else [])],
                f"ORDER BY started_ns DESC LIMIT {int(limit)}",
            )
        ]
        return [number for _, number in heapq.nlargest(limit, rows)]

    @staticmethod
    def _of_id(query: Query, id_: str) -> list[int]:
        """Numbers of the requests that have this id, or this external id."""
        # Many ids may begin with what is a whole external id, too. Beyond the first, only those are read that are vLLM's own:
        # the index alone tells which these are.
        begins = f"request >= ?1 AND request < ?1 || {_AFTER_ALL}"
        first = f"SELECT number, external FROM requests INDEXED BY requests_by_id WHERE {begins} LIMIT {_MAX_BEGINNING}"
        rows = query(
            f"SELECT number FROM requests WHERE request = ?1 UNION SELECT number FROM ({first}) WHERE external = ?1"
            " UNION SELECT number FROM requests INDEXED BY requests_by_id WHERE request >= ?1 || '-' AND request < ?1 || '.'"
            f" AND length(request) = length(?1) + {len('-') + _RANDOM} AND external = ?1"
            f" UNION SELECT number FROM requests INDEXED BY requests_by_external WHERE external = ?1 AND {_UNLIKE}",
            (),
            [id_],
        )
        return [number for (number,) in rows]

    @staticmethod
    def _of_call(query: Query, call: str) -> list[int]:
        """Numbers of the requests of one call to an OpenAI API. Its caller saw `cmpl-1`, while vLLM's external ids of the
        prompts are `cmpl-1-0`, `cmpl-1-1`, and so on. If there are very many, the last to arrive."""
        prefix, end = f"{call}-", f"{call}."  # a dot sorts right after a dash
        both = " UNION ".join(
            f"SELECT number FROM (SELECT number FROM requests INDEXED BY {index} WHERE {condition} LIMIT {_MAX_PROMPTS + 1})"
            for index, condition in (
                ("requests_by_id", "request >= ?1 AND request < ?2 AND external >= ?1 AND external < ?2"),
                ("requests_by_external", f"external >= ?1 AND external < ?2 AND {_UNLIKE}"),
            )
        )
        rows = query(both, (), [prefix, end])
        if len(rows) <= _MAX_PROMPTS:
            return [number for (number,) in rows]
        where = {"instr(external, ?) = 1": prefix}
        return ids.search_ids(query, prefix, where=where, until_ns=_LATEST_NS, limit=_MAX_PROMPTS)
