"""Opens a store for its only writer: sets a damaged store aside, and refuses a store of another schema."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite import log, measures, requests, spool, tables
from kvtrail.tracer.store.sqlite.database import pragma

logger = logging.getLogger("kvtrail")

APPLICATION_ID = int.from_bytes(b"kvtr")
"""SQLite's `application_id` of the file; `file` shows it, too."""
_NAME_AT = 68
SCHEMA_VERSION = 8
SCHEMA = (
    *log.SCHEMA, *requests.SCHEMA, *measures.SCHEMA, *(each for table in tables.EVERY for each in table.schema),
    *spool.SCHEMA,
)  # fmt: skip
"""The SQL statements that create a store."""
OWNERS = 0o600
"""The permissions of a store: only the owner may read request ids and times."""
_ELSEWHERE = "choose a new file (--store), and read this one with the kvtrail that wrote it"
CHECKED_BYTES = 64 * 2**20
"""Size in bytes above which a file is not checked completely before it is used."""


def is_damage(error: Exception) -> bool:
    """Whether SQLite reports that the file's content is damaged."""
    return str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def is_named_ours(path: Path) -> bool:
    """Whether the header of a file says that kvtrail wrote it, even if the rest is damaged
    (https://www.sqlite.org/fileformat2.html#application_id)."""
    with path.open("rb") as file:
        return file.read(_NAME_AT + 4)[_NAME_AT:] == APPLICATION_ID.to_bytes(4)


def set_aside(path: Path, reason: str) -> None:
    """Rename a damaged store, so that a new one can be created."""
    ending = f".damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    for part in parts(path):
        if part.exists():
            part.rename(part.with_name(f"{part.name.replace(path.name, path.name + ending)}"))
    damage_mark(path).unlink(missing_ok=True)
    logger.error(
        "the store %s is damaged (%s). It is set aside as %s, and a new one begins. `sqlite3 %s .recover` prints what can be"
        " saved of it.", path, reason, f"{path.name}{ending}", f"{path.name}{ending}",
    )  # fmt: skip


def damage_mark(path: Path) -> Path:
    """The file that marks a store that was found damaged while in use: it is set aside at the next start."""
    return path.with_name(f"{path.name}.damaged")


def claim(path: Path) -> int:
    """A file descriptor that locks the store's file under any of its names; the file is created if it does not exist, with
    access for its owner only. Close it after all connections of this process: POSIX drops their locks with it.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: it cannot be opened.
    """
    claimed = os.open(path, os.O_RDWR | os.O_CREAT, OWNERS)
    try:
        fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(claimed)
        raise
    return claimed


def make_private(path: Path) -> None:
    """Restrict access to a store to its owner. SQLite's other files get the same permissions."""
    for part in parts(path):
        if part.exists():
            part.chmod(part.stat().st_mode & OWNERS)


def parts(path: Path) -> list[Path]:
    """The files of a store: its own, and SQLite's WAL and shared-memory files."""
    return [path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))]


def identify(db: sqlite3.Connection, path: Path) -> bool:
    """Whether a file is a store of this kvtrail; False if it is empty.

    Raises:
        sqlite3.DatabaseError: it is no database, or damaged.
        StoreError: another program or another kvtrail wrote it.
    """
    application, version = pragma(db, "application_id"), pragma(db, "user_version")
    ((parts_,),) = db.execute("SELECT count(*) FROM sqlite_schema")
    if application != APPLICATION_ID and (application or parts_):
        raise StoreError(
            f"{path} is a SQLite file of another program, and no store of kvtrail; choose another: --store"
        )
    if not parts_:
        return False
    if version != SCHEMA_VERSION:
        raise StoreError(f"{path} has schema {version}, and this kvtrail reads schema {SCHEMA_VERSION}; {_ELSEWHERE}")
    if differing := _differing(db):
        raise StoreError(f"{path} is not a store of schema {version} ({', '.join(differing)}); {_ELSEWHERE}")
    return True


def create(db: sqlite3.Connection) -> None:
    """Create the tables of a store, within the open transaction."""
    for statement in SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _differing(db: sqlite3.Connection) -> list[str]:
    """Descriptions of missing parts of a store, of parts with another definition, and of triggers, views and virtual tables
    that kvtrail did not create: they would run foreign code when the store is read or written."""
    parts_ = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    with closing(sqlite3.connect(":memory:")) as new:
        create(new)
        ours = set(new.execute(parts_))
    found = set(db.execute(parts_))
    run = "sql LIKE 'CREATE VIRTUAL%' OR type IN ('trigger', 'view')"
    foreign = set(db.execute(f"{parts_} AND ({run})")) - ours
    return sorted({f"the {type_} {name!r}" for type_, name, _ in (ours - found) | foreign})


def check_file(path: Path) -> None:
    """Check that a file is a readable store. Raises StoreError if there is none, or it belongs to another kvtrail."""
    if not path.is_file():
        raise StoreError(f"there is no store {path}")
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        identify(db, path)
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {error}") from error
    finally:
        db.close()


def check(db: sqlite3.Connection, path: Path) -> bool:
    """Check that a store can be used; returns False if the file is empty.

    Raises:
        sqlite3.DatabaseError: it is no database, or damaged.
        StoreError: another program or another kvtrail wrote it.
    """
    is_store = identify(db, path)
    found = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    db.text_factory = bytes  # an invalid text is a damaged row, not a damaged file
    for (table,) in found:
        db.execute(f'SELECT * FROM "{table}" LIMIT 1').fetchall()
    db.text_factory = str
    if path.stat().st_size <= CHECKED_BYTES:
        ((report,),) = db.execute("PRAGMA quick_check(1)")
        if report != "ok":
            error = sqlite3.DatabaseError(report)
            error.sqlite_errorname = "SQLITE_CORRUPT"
            raise error
    return is_store
