"""What the tables share: JSON as text, and read-only connections."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvtrail.tracer.store.sqlite import damage

Row = TypeVar("Row", bound=Hashable)
Made = TypeVar("Made")
Query = Callable[..., list[Any]]
"""`Database.query`."""

_encode = msgspec.json.Encoder().encode
from_text = msgspec.json.Decoder().decode
"""The data of a JSON text. Raises ValueError if it is not JSON."""


def to_text(data: Any) -> str:
    """JSON-ready data as text, which SQLite's JSON functions can read."""
    return _encode(data).decode()


def whole_sum(value: str) -> str:
    """The SQL for the sum of integers, which is 0 without any. SQLite's own `sum` fails where they outgrow 64 bits."""
    return f"CAST(total({value}) AS INTEGER)"


class Database:
    """The store for readers: any thread may use it, and each gets its own read-only connection."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.resolve().as_uri()}?mode=ro"
        self._local = threading.local()

    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = sqlite3.connect(self._uri, uri=True, isolation_level=None)
        return db

    def close(self) -> None:
        """Close this thread's connection."""
        if (db := getattr(self._local, "db", None)) is not None:
            db.close()
            self._local.db = None

    def query(self, select: str, where: Sequence[str] = (), values: Sequence[Any] = (), tail: str = "") -> list[Any]:
        """The rows of a SELECT that meet all conditions of `where`. `values` are those of its parameters, and `tail`
        follows the conditions."""
        return rows_of(self.connection(), select, where, values, tail)


def rows_of(
    db: sqlite3.Connection, select: str, where: Sequence[str] = (), values: Sequence[Any] = (), tail: str = ""
) -> list[Any]:
    """As `Database.query`, over this connection."""
    clause = f" WHERE {' AND '.join(where)}" if where else ""
    return whatever_texts(db, lambda: db.execute(f"{select}{clause} {tail}", values).fetchall())


def whatever_texts(db: sqlite3.Connection, read: Callable[[], Made]) -> Made:
    """What `read` reads over this connection. Where a text is none, which fails the whole query, it is done once more, with
    other characters in the place of damaged ones."""
    try:
        return read()
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
    db.text_factory = partial(str, encoding="utf-8", errors="replace")  # slower, so not always
    try:
        return read()
    finally:
        db.text_factory = str


def readable(rows: Iterable[Row], read: Callable[[Row], Made], *, of: str) -> list[Made]:
    """What `read` makes of each row. One that is damaged is left out, and the log says so; it is `of` this table."""
    made = []
    for row in rows:
        try:
            made.append(read(row))
        except (ValueError, TypeError, KeyError) as error:
            damage.note(of, row, error, costs=f"are left out; {damage.REMEDY}")
    return made


def an_object(text: str) -> dict[str, Any]:
    """The data of a JSON text that is an object. Raises ValueError if it is none."""
    if not isinstance(data := from_text(text), dict):
        raise ValueError("a JSON text that is no object")
    return data
