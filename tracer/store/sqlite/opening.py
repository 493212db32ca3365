"""How a store is opened by its one writer: what is damaged is set aside, what is older is changed over, after a copy."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite import structure
from kvtrail.tracer.store.sqlite.older import CHANGES

logger = logging.getLogger("kvtrail")

APPLICATION_ID = int.from_bytes(b"kvtr")
"""What SQLite calls the program that a file belongs to; `file` shows it, too."""
_NAME_AT = 68
SCHEMA_VERSION = 6
_ROWS_ONLY = 2
"""The last schema in which each span was a row. It was never released."""
OWNERS = 0o600
"""The permissions of a store: prompts' ids, and who asked when, are its owner's alone."""
_ELSEWHERE = (
    "choose a new file (--store), and read this one with the kvtrail that wrote it, or put a backup in its place with"
    " `kvtrail store restore`"
)
_COPIED_PAGES = 1_000
"""Pages that are copied at a time: the writer waits for none of them."""
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


def identify(db: sqlite3.Connection, path: Path) -> None:
    """Look whether a file is a store that this kvtrail knows, or empty.

    Raises:
        sqlite3.DatabaseError: it is no database, or damaged.
        StoreError: another program or another kvtrail wrote it.
    """
    ((application,),) = db.execute("PRAGMA application_id")
    ((version,),) = db.execute("PRAGMA user_version")
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    # Before it had a name, it was known by its tables.
    is_unnamed = application == 0 and (not tables or 0 < version <= _ROWS_ONLY or {"chunks", "log_end"} <= tables)
    if application != APPLICATION_ID and not is_unnamed:
        raise StoreError(
            f"{path} is a SQLite file of another program, and no store of kvtrail; choose another: --store"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(f"{path} was written by a newer kvtrail (schema {version}); this one knows {SCHEMA_VERSION}")
    if 0 < version <= _ROWS_ONLY:
        raise StoreError(f"{path} has a row for each span, as no released kvtrail wrote it; choose a new file: --store")
    if foreign := structure.foreign(db):
        raise StoreError(
            f"{path} has what no kvtrail made ({', '.join(foreign)}), and it would run as the store is read or written; put a"
            " backup in its place with `kvtrail store restore`, or choose a new file: --store"
        )
    if not tables:
        return
    changes = [CHANGES[schema] for schema in range(version, SCHEMA_VERSION) if schema in CHANGES]
    if len(changes) != SCHEMA_VERSION - version:
        raise StoreError(f"{path} has the schema {version}, which no kvtrail is known to have written; {_ELSEWHERE}")
    if (difference := structure.difference(db, changes)) is not None:
        raise StoreError(f"{path} is no finished store of schema {version} ({difference}); {_ELSEWHERE}")


def check_file(path: Path, *, any_schema: bool = False) -> None:
    """Look whether a file is a store that can be read, or with `any_schema` one that a writer makes so.

    Raises:
        StoreError: it is none, or of another kvtrail.
    """
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        identify(db, path)
        ((version,),) = db.execute("PRAGMA user_version")
        if version not in (0, SCHEMA_VERSION) and not any_schema:
            raise StoreError(f"{path} has the schema {version}; `kvtrail serve` makes today's of it, and keeps a copy")
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {error}") from error
    finally:
        db.close()


def check(db: sqlite3.Connection, path: Path) -> None:
    """Check that a store can be used.

    Raises:
        sqlite3.DatabaseError: it is no database, or damaged.
        StoreError: another program or another kvtrail wrote it.
    """
    identify(db, path)
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
    for (table,) in db.execute(tables).fetchall():
        db.execute(f'SELECT * FROM "{table}" LIMIT 1').fetchall()
    if path.stat().st_size <= CHECKED_BYTES:
        ((report,),) = db.execute("PRAGMA quick_check(1)")
        if report != "ok":
            error = sqlite3.DatabaseError(report)
            error.sqlite_errorname = "SQLITE_CORRUPT"
            raise error


def is_todays(db: sqlite3.Connection) -> bool:
    """Whether a store has today's schema as a whole, and its name."""
    ((application,),) = db.execute("PRAGMA application_id")
    ((version,),) = db.execute("PRAGMA user_version")
    return (application, version) == (APPLICATION_ID, SCHEMA_VERSION) and structure.is_complete(db)


def change_over(db: sqlite3.Connection, path: Path) -> None:
    """Make a store of today's schema of an older one, within the open transaction. It is copied first.

    Raises:
        OSError, sqlite3.Error: there is no room for the copy, say; nothing has changed.
    """
    ((version,),) = db.execute("PRAGMA user_version")
    if 0 < version < SCHEMA_VERSION:
        before = path.with_name(f"{path.name}.schema-{version}")
        logger.info("the store %s is changed over to schema %s; it is copied to %s first", path, SCHEMA_VERSION, before)
        copy(path, before)
        for schema in range(version, SCHEMA_VERSION):
            CHANGES[schema](db)


def copy(path: Path, target: Path) -> None:
    """Copy a store as it is at this moment. The copy appears when it is complete; a link at its place is replaced, and never
    followed.

    Raises:
        OSError, sqlite3.Error: it cannot be read or copied.
    """
    partly = target.with_name(f"{target.name}.partly")
    partly.unlink(missing_ok=True)
    made = os.open(partly, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, OWNERS)
    try:
        with (
            closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(partly)) as copied,
        ):
            if not os.path.samestat(os.fstat(made), partly.lstat()):
                raise FileExistsError(f"somebody else put another file in the place of {partly}")
            source.execute("BEGIN")  # of one moment, however long it takes
            source.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            source.backup(copied, pages=_COPIED_PAGES)
            copied.execute("PRAGMA journal_mode=DELETE")  # one file, which stands alone
        partly.rename(target)
    except BaseException:
        partly.unlink(missing_ok=True)
        raise
    finally:
        os.close(made)


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged")
