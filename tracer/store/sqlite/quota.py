"""The disk quota of a store: the file, its WAL, and files that were set aside.

The quota is divided: a part is for the WAL, a part for the files set aside, and the rest for the file itself,
which SQLite then refuses to enlarge (`max_page_count`). Long before that, the oldest rows are dropped.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite.database import pragma

logger = logging.getLogger("kvtrail")

UNBOUNDED = 2**62
"""The quota of a store that may take any size."""
WAL_BYTES = 64 * 2**20
"""Maximum size of the WAL; a quarter of the quota, if that is less."""
CHECKPOINT_PAGES = 4_000
"""WAL size in pages at which a checkpoint runs: index pages change repeatedly, so fewer checkpoints write less."""
FULL, FILLED = 0.9, 0.8
"""The shares of the file's quota at which pruning starts and stops."""
ASIDE = 0.5
"""The share of the quota for files set aside, which are damaged stores."""
_SHARED_BYTES = 2**20
"""An upper bound for the size of SQLite's WAL index."""
_BUSY_MS = 100
"""Maximum time that a checkpoint waits for readers; batches wait in the meantime."""


class Quota:
    """The quota of one store, on the connection of its only writer."""

    def __init__(self, db: sqlite3.Connection, path: Path, most_bytes: int) -> None:
        self._db, self._path, self._most_bytes = db, path, most_bytes
        self._wal = path.with_name(f"{path.name}-wal")
        self._wal_bytes = min(WAL_BYTES, most_bytes // 4)
        pages = max(1, min(CHECKPOINT_PAGES, self._wal_bytes // 2 // pragma(db, "page_size")))
        db.execute(f"PRAGMA wal_autocheckpoint={pages}").fetchall()
        db.execute(f"PRAGMA journal_size_limit={self._wal_bytes}").fetchall()
        self.share()

    def share(self) -> None:
        """Divide the quota between the files set aside, whose number changes, and the file itself. A file that is already
        larger keeps its size until rows are dropped."""
        beside = self._files_beside(int(self._most_bytes * ASIDE))
        self._file_bytes = max(self._most_bytes - beside - self._wal_bytes - _SHARED_BYTES, self._most_bytes // 8)
        self._db.execute(f"PRAGMA max_page_count={self._file_bytes // pragma(self._db, 'page_size')}").fetchall()

    def is_short(self, share: float = FULL) -> bool:
        """Whether more than a share of the file's quota is in use."""
        pages = pragma(self._db, "page_count") - pragma(self._db, "freelist_count")
        return pages * pragma(self._db, "page_size") > self._file_bytes * share

    def make_for_wal(self) -> None:
        """Empty the WAL before a transaction, if it is close to its maximum size.

        Raises:
            StoreError: it has reached its maximum size, and a reader keeps it from being emptied.
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

    def _waiting(self) -> int:
        return self._wal.stat().st_size if self._wal.exists() else 0

    def _files_beside(self, most_bytes: int) -> int:
        """Bytes of the files set aside; the oldest files are deleted if they exceed their share."""
        damaged = self._path.parent.glob(f"{self._path.name}.damaged-*")
        beside = sorted((path.stat().st_mtime_ns, path) for path in damaged)
        total = sum(path.stat().st_size for _, path in beside)
        for _, path in beside:
            if total <= most_bytes:
                break
            total -= path.stat().st_size
            path.unlink()
            logger.warning("%s is deleted, because the store would exceed --retain-gib otherwise", path)
        return total
