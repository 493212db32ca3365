"""The default store: one SQLite file in WAL mode.

One connection writes and checkpoints; all others are read-only. That is also how the WAL-reset bug of SQLite 3.7 to
3.51.2 (https://sqlite.org/wal.html#walresetbug) is kept out, which needs two connections that write or checkpoint.
`synchronous=NORMAL`: a commit survives the death of the process, though not of the machine.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from kvtrail.tracer.detect.lanes import Lane, Lanes, Window
from kvtrail.tracer.detect.savings import Row
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.spans import Span
from kvtrail.tracer.store import EVERY, Batch, StoreError, Which
from kvtrail.tracer.store.sqlite import efficiency as sums
from kvtrail.tracer.store.sqlite import findings, requests
from kvtrail.tracer.store.sqlite import lanes as lane_table
from kvtrail.tracer.store.sqlite.engines import engines
from kvtrail.tracer.store.sqlite.texts import from_text, to_text

logger = logging.getLogger("kvtrail")

SCHEMA_VERSION = 2
GEN_AI_REQUEST_ID = "gen_ai.request.id"
"""By this attribute vLLM's `llm_request` names the request, with its external id, even when the trace is another."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS resources (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE)",
    """CREATE TABLE IF NOT EXISTS spans (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    span_id TEXT NOT NULL, trace_id TEXT NOT NULL, parent_id TEXT NOT NULL,
    name TEXT NOT NULL, scope TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    engine TEXT, request TEXT, named TEXT, error TEXT, resource INTEGER NOT NULL,
    attributes TEXT NOT NULL, events TEXT NOT NULL,
    UNIQUE (span_id, trace_id)
)""",
    "CREATE INDEX IF NOT EXISTS spans_by_request ON spans (request, engine)",
    "CREATE INDEX IF NOT EXISTS spans_by_name_of_request ON spans (named) WHERE named IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS spans_by_trace ON spans (trace_id)",
    "CREATE INDEX IF NOT EXISTS spans_by_time ON spans (end_ns)",
)
_SPAN_COLUMNS = (
    "span_id, trace_id, parent_id, name, scope, start_ns, end_ns, error, attributes, events,"
    " (SELECT body FROM resources WHERE id = resource)"
)


class SqliteWriter:
    """The writing side; creates the file."""

    def __init__(self, path: Path) -> None:
        """Raises StoreError when the file cannot be opened, is no database, or belongs to a newer kvtrail."""
        self.path = path
        self._resources: dict[str, int] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = path.with_name(f"{path.name}.lock").open("w")
            _lock_alone(self._lock, path)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise StoreError(
                    f"{path} was written by a newer kvtrail (schema {version}); this one knows {SCHEMA_VERSION}"
                )
            with self._transaction():
                self._settle(version)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot open the store {path}: {error}") from error

    def _settle(self, version: int) -> None:
        """Make the tables, or those of an older store into ours; a kill half-way leaves what was there before."""
        if version == 1:
            logger.info(
                "the store %s is of an older kvtrail: it is made over, once, a minute or two for a million requests",
                self.path,
            )
            requests.upgrade(self._db)
            findings.upgrade(self._db)
        parts = (_SCHEMA, requests.SCHEMA, findings.SCHEMA, sums.SCHEMA, lane_table.SCHEMA)
        for statement in (statement for part in parts for statement in part):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def known(self, spans: Sequence[Span]) -> set[tuple[str, str]]:
        ids = to_text([span.span_id for span in spans])
        query = "SELECT trace_id, span_id FROM spans WHERE span_id IN (SELECT value FROM json_each(?))"
        return set(self._db.execute(query, (ids,)))

    def write(self, batch: Batch) -> None:
        with self._transaction():
            self._write(batch)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                self._resources.clear()
                raise
            self._db.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            raise StoreError(f"cannot write to the store {self.path}: {error}") from error

    def open_spans(self) -> Iterable[Span]:
        # From the few that are open to their spans: in the order of their numbers, all spans would be read.
        rows = self._db.execute(
            f"SELECT {_SPAN_COLUMNS} FROM spans WHERE number IN (SELECT spans.number FROM requests INDEXED BY requests_open"
            " CROSS JOIN spans USING (request, engine) WHERE requests.ended_ns IS NULL AND scope = ?) ORDER BY number",
            (semconv.SCOPE,),
        )
        return map(_span, rows)

    def spans_of_request(self, engine: str, request: str) -> Iterable[Span]:
        query = f"SELECT {_SPAN_COLUMNS} FROM spans WHERE request = ? AND engine = ? ORDER BY number"
        return [_span(row) for row in self._db.execute(query, (request, engine))]

    def prune(self, *, before_ns: int) -> int:
        with self._transaction():
            return self._prune(max(0, before_ns))

    def _prune(self, before_ns: int) -> int:
        dropped = self._db.execute(
            "DELETE FROM spans WHERE end_ns < ? AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.request = spans.request"
            " AND r.engine = spans.engine AND r.last_ns >= ?)",
            (before_ns, before_ns),
        ).rowcount
        self._db.execute(lane_table.PRUNE, (before_ns,))
        self._db.execute("DELETE FROM requests WHERE last_ns < ?", (before_ns,))
        sums.prune(self._db, before_ns=before_ns)
        return dropped

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    def _write(self, batch: Batch) -> None:
        resources: dict[int, int] = {}  # spans share their resource objects, which live as long as the batch
        self._db.executemany(
            "INSERT OR IGNORE INTO spans (span_id, trace_id, parent_id, name, scope, start_ns, end_ns, engine, request,"
            " named, error, resource, attributes, events) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (self._span_row(span, event, resources) for span, event in batch.spans),
        )
        requests.put(self._db, batch.accounts)
        findings.put(self._db, batch.findings)
        self._db.executemany(lane_table.UPSERT, map(lane_table.row, batch.lanes))
        sums.add(self._db, batch.efficiency)

    def _span_row(self, span: Span, event: Event | None, resources: dict[int, int]) -> tuple[Any, ...]:
        named = span.attributes.get(GEN_AI_REQUEST_ID)
        whose: tuple[str | None, ...] = (None, None, named if isinstance(named, str) else None)
        if event is not None:
            whose = (event.engine, event.request, None)
        resource = resources.get(id(span.resource))
        if resource is None:
            resource = resources[id(span.resource)] = self._resource(span)
        return (
            span.span_id, span.trace_id, span.parent_id, span.name, span.scope, span.start_ns, span.end_ns, *whose,
            span.error, resource, to_text(span.attributes), to_text(span.events),
        )  # fmt: skip

    def _resource(self, span: Span) -> int:
        body = to_text(span.resource)
        number = self._resources.get(body)
        if number is None:
            self._db.execute("INSERT OR IGNORE INTO resources (body) VALUES (?)", (body,))
            (number,) = self._db.execute("SELECT id FROM resources WHERE body = ?", (body,)).fetchone()
            self._resources[body] = int(number)
        return int(number)


def _lock_alone(file: IO[str], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"another tracer writes to the store {path}; choose another: --store") from None


class SqliteReader:
    """The reading side; any thread may use it, each gets a read-only connection of its own."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.resolve().as_uri()}?mode=ro"
        self._local = threading.local()

    def requests(
        self, *, search: str = "", status: str = "", verdict: str = "", limit: int = 100, before_ns: int | None = None
    ) -> list[dict[str, Any]]:
        return requests.find(
            self._query, search=search, status=status, verdict=verdict, limit=limit, before_ns=before_ns
        )

    def request(self, request: str, *, engine: str = "") -> dict[str, Any] | None:
        return requests.one(self._query, request, engine=engine)

    def spans_of(self, account: dict[str, Any], *, limit: int = 20_000) -> list[Span]:
        rows = self._query(
            f"SELECT {_SPAN_COLUMNS} FROM spans",
            ["(request = ? AND engine = ?) OR (trace_id = ? AND request IS NULL) OR named = ?"],
            [account["request"], account["engine"], account["trace_id"], account["external"]],
            f"ORDER BY end_ns DESC, number DESC LIMIT {int(limit)}",
        )
        return [_span(row) for row in reversed(rows)]

    def findings(self, which: Which = EVERY, *, limit: int = 100) -> list[dict[str, Any]]:
        return findings.find(self._query, which, limit=limit)

    def findings_trend(self, which: Which = EVERY, *, step_ns: int) -> list[dict[str, Any]]:
        return findings.trend(self._query, which, step_ns=step_ns)

    def findings_places(self) -> dict[str, list[str]]:
        return findings.places(self._query)

    def efficiency(
        self, *, since_ns: int, until_ns: int, engine: str = "", connector: str = "", stretch_s: int = 1
    ) -> list[Row]:
        return sums.read(
            self._query, since_ns=since_ns, until_ns=until_ns, engine=engine, connector=connector, stretch_s=stretch_s
        )

    def engines(self) -> dict[str, dict[str, Any]]:
        return engines(self._query)

    def lanes(self, window: Window, *, live: Iterable[str]) -> Lanes:
        named = requests.few(
            self._query, search=window.search, status=window.status, until_ns=window.to_ns, most=lane_table.NAMED
        )
        return lane_table.find(self._connection(), window, live=live, named=named)

    def marks(self, window: Window, lanes: Sequence[Lane], *, limit: int) -> list[dict[str, Any]]:
        return lane_table.marks(self._connection(), window, lanes, limit=limit)

    def tail(self, *, after: int, limit: int = 500) -> list[tuple[int, Span]]:
        rows = self._query(
            f"SELECT number, {_SPAN_COLUMNS} FROM spans", ["number > ?"], [after], f"ORDER BY number LIMIT {int(limit)}"
        )
        return [(number, _span(rest)) for number, *rest in rows]

    def last_number(self) -> int:
        return int(self._query("SELECT coalesce(max(number), 0) FROM spans", [], [])[0][0])

    def activity(self, *, since_ns: int) -> dict[str, dict[str, int]]:
        rows = self._query(
            f"SELECT name, count(*), sum(attributes ->> '$.\"{semconv.RETURNED.key}\"'),"
            f" sum(attributes ->> '$.\"{semconv.COUNT.key}\"'), sum(attributes ->> '$.\"{semconv.BYTES.key}\"')"
            " FROM spans",
            ["end_ns >= ?", "scope = ?"],
            [since_ns, semconv.SCOPE],
            "GROUP BY name",
        )
        names = ("count", "returned", "count_tokens", "bytes")
        return {name: dict(zip(names, (int(n or 0) for n in sums), strict=True)) for name, *sums in rows}

    def totals(self) -> dict[str, int]:
        ((found,),) = self._query("SELECT count(*) FROM findings", [], [])
        return {**requests.totals(self._query), "findings": int(found)}

    def _query(self, select: str, where: list[str], values: list[Any], tail: str = "") -> list[Any]:
        clause = f" WHERE {' AND '.join(where)}" if where else ""
        return self._connection().execute(f"{select}{clause} {tail}", values).fetchall()

    def _connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = sqlite3.connect(self._uri, uri=True, isolation_level=None)
        return db


def _span(row: Sequence[Any]) -> Span:
    span_id, trace_id, parent_id, name, scope, start_ns, end_ns, error, attributes, events, resource = row
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        scope=scope,
        start_ns=start_ns,
        end_ns=end_ns,
        error=error,
        attributes=from_text(attributes),
        events=from_text(events),
        resource=from_text(resource),
    )
