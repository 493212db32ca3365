"""One SQLite file in WAL mode, for writing and for reading.

A single connection writes and checkpoints; all others are read-only. This also avoids the WAL-reset bug of SQLite 3.7 to
3.51.2 (https://sqlite.org/wal.html#walresetbug), which needs two connections that write or checkpoint.
`synchronous=NORMAL`: a commit survives a crash of the process, but not of the machine.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtrail.tracer.store import Batch, StoreError, StoreInUse
from kvtrail.tracer.store.engines import EngineReader
from kvtrail.tracer.store.queries import an_object
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.sqlite import lanes, log, measures, opening, quota, recall, requests, spans, tables
from kvtrail.tracer.store.sqlite.database import Database, pragma
from kvtrail.tracer.store.sqlite.quota import Quota
from kvtrail.tracer.store.sqlite.spool import Spool

PRUNED_CHUNKS, PRUNED_REQUESTS, PRUNED_FINDINGS = 64, 50, 1_000
"""Maximum number of rows dropped in one transaction, so that ingest does not wait long."""
VACUUMED_PAGES = 500
_INCREMENTAL = 2
"""SQLite's value for incremental `auto_vacuum`."""
_CACHE_KIB = 32 * 1024
FILLED_UP = 0.95
"""The share of the file's quota at which a batch waits until the oldest rows are dropped."""
KEPT_FREE = 0.1
"""The share of the file that may be free, for new data. The rest is returned to the disk."""
SMALLEST_VACUUM = 4096
"""Minimum number of pages for a vacuum."""
_REFUSED = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
_UNFIT = (OverflowError, TypeError, ValueError, *_REFUSED)
"""Exceptions of rows that no database can hold; all other exceptions are the database's and are propagated."""


_PUT: dict[str, Callable[[sqlite3.Connection, Sequence[Any]], None]] = {
    "engines": tables.ENGINES.put,
    "requests": requests.put,
    "findings": tables.FINDINGS.put,
    "launches": tables.LAUNCHES.put,
    "handoffs": tables.HANDOFFS.put,
    "markers": tables.MARKERS.put,
    "savings": tables.SAVINGS.put,
    "wasted": tables.WASTE.put,
}
"""The writers of each part of a batch, except its spans."""


class SqliteWriter(recall.RecallReader, EngineReader, Database):
    """The writing side; creates the file. It also reads data that a tracer needs again, over separate connections."""

    def __init__(self, path: Path, *, spool: Spool | None = None, most_bytes: int = quota.UNBOUNDED) -> None:
        """A damaged file is set aside, and a new one created. Batches are also added to the `spool`. All files of the store
        together take at most `most_bytes`.

        Raises:
            StoreError: the file cannot be opened, is not a store, or was written by another kvtrail.
        """
        super().__init__(path)
        self.path, self._spool, self._most_bytes = path.resolve(), spool, most_bytes
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_name(f"{self.path.name}.lock")
            was_there = lock.exists()
            self._lock, self._claim = opening.claim(lock), -1
            try:
                self._open(was_there=was_there)
            except BaseException:
                self._release()
                if not was_there:  # or else the next start would treat an incomplete store as damaged
                    lock.unlink(missing_ok=True)
                raise
        except BlockingIOError:
            raise StoreInUse(f"another tracer writes to the store {path}; choose another: --store") from None
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot open the store {path}: {error}") from error

    def write(self, batch: Batch) -> Sequence[Exception]:
        """Store a batch. After this returns, a kill -9 does not lose it. Parts that no database can hold (a number too large,
        an invalid text) are omitted: returns an error for each. An empty batch checks whether the store can be written.

        Raises:
            StoreError: no part of the batch was stored; the text says why.
        """
        if self._quota.is_short(FILLED_UP):
            for _ in self._make_room():  # pruning has not kept up
                pass
        parts = {name: _listed(getattr(batch, name)) for name in _PUT}
        try:
            with self._transaction():
                self._append(batch)
                for name, rows in parts.items():
                    _PUT[name](self._db, rows)
                self._end(batch)
                if batch.chunk is None and not any(parts.values()):
                    self._db.execute(
                        f"PRAGMA user_version={opening.SCHEMA_VERSION}"
                    )  # at least one page is always written
            return ()
        except _UNFIT:
            errors: list[Exception] = []
            with self._transaction():
                self._append(batch)
                fit: dict[str, Any] = {}
                for name, rows in parts.items():
                    fitting = [row for row in rows if self._fits(name, row, errors)]
                    fit[name] = dict(fitting) if isinstance(getattr(batch, name), Mapping) else fitting
                self._end(replace(batch, **fit))
            return errors

    def forget_derived(self) -> None:
        """Drop data derived from the log, so that the whole log is judged again. Data older than the log is kept."""
        with self._transaction():
            since_ns = self.begins_ns()
            for table in (measures, requests, *tables.DERIVED):
                table.forget(self._db, since_ns=since_ns)
            self._log.settle(0)
            self._log.judge(0)

    def fold(self, *, some: bool = False) -> bool:
        """Join small chunks of the log, which is cheaper for many at once; with `some` also few. Returns whether it joined
        any."""
        fresh = self._log.fresh()
        if not fresh or (fresh < log.FOLDED_SPANS and not some):
            return False
        with self._transaction():
            self._log.fold()
        return True

    def prune(self, *, before_ns: int) -> Iterator[int]:
        """Drop spans, requests and sums older than `before_ns`, and then the oldest ones, until the store is within its
        quota; findings only if that is not enough. The space is returned to the disk.

        It works in steps of some milliseconds, and yields the number of spans dropped by each. Between two steps, batches
        may be written.
        """
        before_ns = max(0, before_ns)
        yield from self._drop_log(before_ns)
        yield from self._drop_rows(before_ns)
        with self._reported("bound"):
            self._quota.share()
        if self._quota.is_short():
            yield from self._make_room(before_ns)
        yield from self._give_back()

    def is_filling(self) -> bool:
        """Whether the store is close to its quota, and should be pruned soon."""
        with self._reported("read"):
            return self._quota.is_short()

    def _make_room(self, before_ns: int = 0) -> Iterator[int]:
        """Drop the oldest data, findings last, until there is free space again."""
        while self._quota.is_short(quota.FILLED):
            before_ns = max(before_ns, self._log.oldest_ns(PRUNED_CHUNKS) + 1)
            dropped = yield from self._drop_log(before_ns)
            yield from self._drop_rows(before_ns)
            if not dropped:
                with self._transaction():
                    if not tables.drop_oldest_findings(self._db, PRUNED_FINDINGS):
                        break
                yield 0

    def close(self) -> None:
        if self._spool is not None:
            with suppress(StoreError), self._transaction():
                self._spool.sweep(self._db)
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            super().query("SELECT count(*) FROM sqlite_schema")
        self._db.close()
        super().close()  # last, read-only: it keeps the WAL index, for which a full disk has no space
        self._release()

    def _release(self) -> None:
        for descriptor in (self._claim, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._claim = self._lock = -1

    def _append(self, batch: Batch) -> None:
        """Append the spans. If that fails, nothing is stored: acknowledged data must be in the log."""
        if batch.chunk is not None:
            self._log.append(batch.chunk)
            tables.RECEIPTS.put(self._db, [batch.digest])
            tables.RECORDERS.put(self._db, batch.seen.items())

    def _fits(self, name: str, row: Any, errors: list[Exception]) -> bool:
        """Store one row within the open transaction. If no database can hold it, nothing changes, and its error is added."""
        self._db.execute("SAVEPOINT row")
        try:
            _PUT[name](self._db, [row])
        except _UNFIT as error:
            self._db.execute("ROLLBACK TO row")
            errors.append(error)
            return False
        finally:
            self._db.execute("RELEASE row")
        return True

    def _drop_log(self, before_ns: int) -> Generator[int, None, int]:
        dropped = 0
        while True:
            with self._transaction():
                spans = self._log.drop_oldest(PRUNED_CHUNKS, before_ns=before_ns)
            dropped += spans
            yield spans
            if not spans:
                return dropped

    def _drop_rows(self, before_ns: int) -> Iterator[int]:
        number: int | None = 0
        while number is not None:
            with self._transaction():
                number = requests.prune(self._db, after=number, limit=PRUNED_REQUESTS, before_ns=before_ns)
            yield 0
        with self._transaction():
            for table in (tables.SAVINGS, tables.WASTE, tables.HANDOFFS, tables.MARKERS):
                table.prune(self._db, before_ns=before_ns)
        yield 0
        with self._transaction():
            for table in tables.FOR_LONG:
                table.prune(self._db, before_ns=2 * before_ns - time.time_ns())
        yield 0

    def _give_back(self) -> Iterator[int]:
        """Shrink the file, if much of it is free."""
        keep = max(SMALLEST_VACUUM, int(pragma(self._db, "page_count") * KEPT_FREE))
        while (free := pragma(self._db, "freelist_count")) > keep:
            self._db.execute(f"PRAGMA incremental_vacuum({min(VACUUMED_PAGES, free - keep)})").fetchall()
            yield 0
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # the file is truncated only then

    def _end(self, batch: Batch) -> None:
        """Record the log's settled and judged positions, and add the stored batch to the spool."""
        if batch.settled is not None:  # after the rows, since new rows store the old number
            self._log.settle(batch.settled)
        self._log.judge(batch.judged)
        if self._spool is not None:
            self._spool.put(self._db, batch)

    def _open(self, *, was_there: bool) -> None:
        """Open the file; if it is damaged, set it aside and create a new one. `was_there`: a tracer has used it before."""
        if opening.damage_mark(self.path).exists():
            opening.set_aside(self.path, "it was found damaged while in use")
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            if not (opening.is_damage(error) and (was_there or opening.is_named_ours(self.path))):
                raise
            self._db.close()
            opening.set_aside(self.path, str(error))
            self._prepare()

    def _prepare(self) -> None:
        """Open the file, and create missing tables.

        Raises:
            sqlite3.DatabaseError: it is not a database, or damaged.
            StoreError: another kvtrail wrote it.
        """
        if self._claim >= 0:
            os.close(self._claim)  # the lock of the file that was set aside
        self._claim = opening.claim(self.path)
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        is_store = opening.check(self._db, self.path)
        opening.make_private(self.path)
        if pragma(self._db, "auto_vacuum") != _INCREMENTAL:  # setting it writes to the disk, which may be full
            self._db.execute(f"PRAGMA auto_vacuum={_INCREMENTAL}")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(f"PRAGMA cache_size={-_CACHE_KIB}")
        self._quota = Quota(self._db, self.path, self._most_bytes)
        self._log = log.Log(self._db)
        if not is_store:
            with self._transaction():
                opening.create(self._db)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._check_place()
        with self._reported("write to"):
            self._quota.make_for_wal()
            self._db.execute("BEGIN")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _check_place(self) -> None:
        """Raises StoreError if the file was moved or deleted: writes to it would be lost."""
        try:
            is_there = os.path.samestat(self.path.stat(), os.fstat(self._claim))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise StoreError(
                f"the store {self.path} was moved or deleted while it was in use: put it back, or restart the tracer"
            )

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Raise database errors as StoreError."""
        try:
            yield
        except _REFUSED:
            raise
        except sqlite3.Error as error:
            if opening.is_damage(error):
                opening.damage_mark(self.path).touch()
                text = f"the store {self.path} is damaged ({error}); it is set aside when the tracer starts again"
                raise StoreError(text) from error
            raise StoreError(f"cannot {what} the store {self.path}: {error}") from error

    def query(self, select: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        with self._reported("read"):
            return super().query(select, values)


class SqliteReader(spans.SpanReader, lanes.LaneReader, Reader):
    """The reading side."""

    pairs = "json_group_object(measure, total)"
    by_index = "INDEXED BY findings_in_time"

    def measures_of(self, pairs: str) -> dict[str, int]:
        return an_object(pairs)


def _listed(part: Any) -> list[Any]:
    return [*(part.items() if isinstance(part, Mapping) else part)]
