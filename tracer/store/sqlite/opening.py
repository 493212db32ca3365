"""How a store is opened by its one writer: a damaged one is set aside, and one of another schema is refused."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite import log, measures, outbox, requests, tables
from kvtrail.tracer.store.sqlite.database import pragma

logger = logging.getLogger("kvtrail")

APPLICATION_ID = int.from_bytes(b"kvtr")
"""What SQLite calls the program that a file belongs to; `file` shows it, too."""
_NAME_AT = 68
SCHEMA_VERSION = 7
SCHEMA = (
    *log.SCHEMA, *requests.SCHEMA, *measures.SCHEMA, *(each for table in tables.EVERY for each in table.schema),
    *outbox.SCHEMA,
)  # fmt: skip
"""What a store is made of."""
OWNERS = 0o600
"""The permissions of a store: prompts' ids, and who asked when, are its owner's alone."""
_ELSEWHERE = "choose a new file (--store), and read this one with the kvtrail that wrote it"
CHECKED_BYTES = 64 * 2**20
"""A larger file is not read as a whole before it is used."""


def is_damage(error: Exception) -> bool:
    """Whether SQLite says that what is in the file cannot be."""
    return str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def is_named_ours(path: Path) -> bool:
    """Whether the head of a file says that a kvtrail wrote it, however damaged the rest is
    (https://www.sqlite.org/fileformat2.html#application_id)."""
    with path.open("rb") as file:
        return file.read(_NAME_AT + 4)[_NAME_AT:] == APPLICATION_ID.to_bytes(4)


def set_aside(path: Path, reason: str) -> None:
    """Rename a damaged store, so that a new one can begin."""
    ending = f".damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    for part in parts(path):
        if part.exists():
            part.rename(part.with_name(f"{part.name.replace(path.name, path.name + ending)}"))
    _mark(path).unlink(missing_ok=True)
    logger.error(
        "the store %s is damaged (%s). It is set aside as %s, and a new one begins. `sqlite3 %s .recover` prints what can be"
        " saved of it.", path, reason, f"{path.name}{ending}", f"{path.name}{ending}",
    )  # fmt: skip


def note_damage(path: Path) -> None:
    """Note that a store was found to be damaged while it was used: it is set aside at the next start."""
    _mark(path).touch()


def has_damage(path: Path) -> bool:
    """Whether that was noted."""
    return _mark(path).exists()


def claim(path: Path) -> int:
    """A descriptor of the store's file that locks it, whatever name it has; the file is made if there is none, for its owner
    alone. To be closed after all connections of this process: POSIX drops their locks with it.

    Raises:
        BlockingIOError: another process has claimed it.
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
    """Take a store from all but its owner. What SQLite puts beside it gets the same permissions."""
    for part in parts(path):
        if part.exists():
            part.chmod(part.stat().st_mode & OWNERS)


def parts(path: Path) -> list[Path]:
    """The files of a store: its own, and those that SQLite has beside it."""
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
        raise StoreError(f"{path} is no store of schema {version} ({', '.join(differing)}); {_ELSEWHERE}")
    return True


def create(db: sqlite3.Connection) -> None:
    """Make the tables of a store, within the open transaction."""
    for statement in SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _differing(db: sqlite3.Connection) -> list[str]:
    """In words, which parts of a store are missing or have another definition; and which triggers, views and virtual tables
    no kvtrail made: they would run code of their own as the store is read and written."""
    parts_ = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    with closing(sqlite3.connect(":memory:")) as new:
        create(new)
        ours = set(new.execute(parts_))
    found = set(db.execute(parts_))
    run = "sql LIKE 'CREATE VIRTUAL%' OR type IN ('trigger', 'view')"
    foreign = set(db.execute(f"{parts_} AND ({run})")) - ours
    return sorted({f"the {type_} {name!r}" for type_, name, _ in (ours - found) | foreign})


def check_file(path: Path) -> None:
    """Check that a file is a store that can be read. Raises StoreError if it is none, or of another kvtrail."""
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
    db.text_factory = bytes  # a text that is none is a damaged row, and no damaged file
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


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged")
