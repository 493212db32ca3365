"""One SQLite file in WAL mode, for writing and for reading.

A single connection writes and checkpoints; all others are read-only. This also avoids the WAL-reset bug of SQLite 3.7 to
3.51.2 (https://sqlite.org/wal.html#walresetbug), which needs two connections that write or checkpoint.
`synchronous=NORMAL`: a commit survives the death of the process, though not of the machine.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.spans import Span
from kvtrail.tracer.store import Batch, StoreError
from kvtrail.tracer.store.sqlite import findings, lanes, requests, savings, spans
from kvtrail.tracer.store.sqlite.database import to_text
from kvtrail.tracer.store.sqlite.spans import COLUMNS, span_of

logger = logging.getLogger("kvtrail")

SCHEMA_VERSION = 2
_REFUSED = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
_UNFIT = (OverflowError, TypeError, ValueError, *_REFUSED)
"""What a row raises that no database can hold; anything else is the database's own trouble, and passes."""


class SqliteWriter:
    """The writing side; creates the file."""

    def __init__(self, path: Path) -> None:
        """Raises StoreError if the file cannot be opened, is not a database, or was written by a newer kvtrail."""
        self.path = path
        self._resources = spans.Resources()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = path.with_name(f"{path.name}.lock").open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"another tracer writes to the store {path}; choose another: --store") from None
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise StoreError(
                    f"{path} was written by a newer kvtrail (schema {version}); this one knows {SCHEMA_VERSION}"
                )
            with self._transaction():
                self._create(version)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot open the store {path}: {error}") from error

    def known(self, spans: Sequence[Span]) -> set[tuple[str, str]]:
        ids = to_text([span.span_id for span in spans])
        query = "SELECT trace_id, span_id FROM spans WHERE span_id IN (SELECT value FROM json_each(?))"
        return set(self._db.execute(query, (ids,)))

    def write(self, batch: Batch) -> Sequence[Exception]:
        parts: list[tuple[Callable[[Any], None], Sequence[Any]]] = [
            (partial(spans.put, self._db, resources=self._resources), batch.spans),
            (partial(requests.put, self._db), batch.accounts),
            (partial(findings.put, self._db), batch.findings),
            (partial(lanes.put, self._db), batch.lanes),
            (partial(savings.add, self._db), list(batch.savings.items())),
        ]
        try:
            with self._transaction():
                for put, rows in parts:
                    put(rows)
                if not any(rows for _, rows in parts):
                    self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")  # a page is written all the same
            return ()
        except _UNFIT:
            with self._transaction():
                return [
                    error for put, rows in parts for row in rows if (error := self._put_alone(put, row)) is not None
                ]

    def _put_alone(self, put: Callable[[Any], None], row: Any) -> Exception | None:
        """Store one row within the open transaction; if no database can hold it, nothing has changed."""
        self._db.execute("SAVEPOINT row")
        try:
            put([row])
        except _UNFIT as error:
            self._db.execute("ROLLBACK TO row")
            self._resources.clear()
            return error
        finally:
            self._db.execute("RELEASE row")
        return None

    def open_spans(self) -> Iterable[Span]:
        # From the few open requests to their spans: in the order of span numbers, all spans would be read.
        rows = self._db.execute(
            f"SELECT {COLUMNS} FROM spans WHERE number IN (SELECT spans.number FROM requests INDEXED BY requests_open"
            " CROSS JOIN spans USING (request, engine) WHERE requests.ended_ns IS NULL AND scope = ?) ORDER BY number",
            (semconv.SCOPE,),
        )
        return map(span_of, rows)

    def spans_of_request(self, engine: str, request: str) -> Iterable[Span]:
        query = f"SELECT {COLUMNS} FROM spans WHERE request = ? AND engine = ? ORDER BY number"
        return [span_of(row) for row in self._db.execute(query, (request, engine))]

    def prune(self, *, before_ns: int) -> int:
        before_ns = max(0, before_ns)
        with self._transaction():
            dropped = spans.prune(self._db, before_ns=before_ns)
            lanes.prune(self._db, before_ns=before_ns)
            requests.prune(self._db, before_ns=before_ns)
            savings.prune(self._db, before_ns=before_ns)
        self._resources.clear()  # some may have been dropped
        return dropped

    def drop_spans(self, requests: Iterable[tuple[str, str]]) -> None:
        with self._transaction():
            spans.drop(self._db, requests)

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    def _create(self, version: int) -> None:
        """Create the tables, after converting those of an older store. A kill half-way leaves the old store intact."""
        if version == 1:
            logger.info(
                "the store %s was written by an older kvtrail and is now converted, once; a million requests take a minute"
                " or two",
                self.path,
            )
            requests.upgrade(self._db)
            findings.upgrade(self._db)
        for table in (spans, requests, findings, savings, lanes):
            for statement in table.SCHEMA:
                self._db.execute(statement)
        spans.note_uses(self._db)
        self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

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
        except _REFUSED:
            raise
        except sqlite3.Error as error:
            raise StoreError(f"cannot write to the store {self.path}: {error}") from error


class SqliteReader(spans.SpanReader, findings.FindingReader, savings.SavingsReader, lanes.LaneReader):
    """The reading side: a `Reader`. Each part of it is in the file of its table."""
