"""How much of the disk a store takes, and that it takes no more: the file, what waits in its WAL, and what lies beside it.

The bound is shared out: a part for the WAL, as much as the files beside the store take, and the rest for the file itself,
which SQLite then refuses to enlarge (`max_page_count`). Long before that the oldest rows leave.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite.database import pragma

logger = logging.getLogger("kvtrail")

WAL_BYTES = 64 * 2**20
"""Of the WAL at most; a quarter of the bound, if that is less."""
CHECKPOINT_PAGES = 4_000
"""The pages of the indexes come again and again: the more batches they wait for, the less is written."""
FULL, FILLED = 0.9, 0.8
"""The shares of the file's room at which the oldest rows leave, and until which."""
ASIDE = 0.5
"""The share of the bound that files beside the store may take. They are damaged stores."""
_SHARED_BYTES = 2**20
"""More than SQLite's index of the WAL takes."""
_BUSY_MS = 100
"""How long a checkpoint waits for readers: batches wait meanwhile."""


class Quota:
    """The quota of one store, on the connection of its one writer."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db, self._path = db, path
        self._wal = path.with_name(f"{path.name}-wal")
        self._wal_bytes = WAL_BYTES
        self._file_bytes: int | None = None
        """Of the file at most; None while no bound is known."""
        self._share_wal()

    def bound(self, most_bytes: int) -> None:
        """Keep to a bound from now on. A file that is larger already keeps its size until rows have left it."""
        beside = self._files_beside(int(most_bytes * ASIDE))
        self._wal_bytes = min(WAL_BYTES, most_bytes // 4)
        self._file_bytes = max(most_bytes - beside - self._wal_bytes - _SHARED_BYTES, most_bytes // 8)
        self._share_wal()
        self._db.execute(f"PRAGMA max_page_count={self._file_bytes // pragma(self._db, 'page_size')}").fetchall()

    def used(self) -> int:
        """Bytes of the file that are in use."""
        return (pragma(self._db, "page_count") - pragma(self._db, "freelist_count")) * pragma(self._db, "page_size")

    def is_short(self, share: float = FULL) -> bool:
        """Whether more than a share of the file's room is in use."""
        return self._file_bytes is not None and self.used() > self._file_bytes * share

    def make_for_wal(self) -> None:
        """Empty the WAL before a transaction, if it has come near to its part.

        Raises:
            StoreError: it has grown to its part, and somebody who reads keeps it from being emptied.
        """
        if self._waiting() < self._wal_bytes * 3 // 4:
            return
        patience = pragma(self._db, "busy_timeout")
        self._db.execute(f"PRAGMA busy_timeout={_BUSY_MS}").fetchall()
        try:
            ((is_read, _, _),) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._db.execute(f"PRAGMA busy_timeout={patience}").fetchall()
        if is_read and self._waiting() >= self._wal_bytes:
            raise StoreError(f"the WAL of the store {self._path} is full, and a reader keeps it from being emptied")

    def _share_wal(self) -> None:
        pages = max(1, min(CHECKPOINT_PAGES, self._wal_bytes // 2 // pragma(self._db, "page_size")))
        self._db.execute(f"PRAGMA wal_autocheckpoint={pages}").fetchall()
        self._db.execute(f"PRAGMA journal_size_limit={self._wal_bytes}").fetchall()

    def _waiting(self) -> int:
        return self._wal.stat().st_size if self._wal.exists() else 0

    def _files_beside(self, most_bytes: int) -> int:
        """Bytes of the files that were set aside; the oldest are deleted where they take too much."""
        damaged = self._path.parent.glob(f"{self._path.name}.damaged-*")
        beside = sorted((path.stat().st_mtime_ns, path) for path in damaged)
        total = sum(path.stat().st_size for _, path in beside)
        for _, path in beside:
            if total <= most_bytes:
                break
            total -= path.stat().st_size
            path.unlink()
            logger.warning("%s is deleted: with it, the store would take more than --retain-gib", path)
        return total
