"""Reads SQLite over read-only connections, one for each thread, even if parts of the file are damaged."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kvtrail.tracer.store import queries
from kvtrail.tracer.store.queries import to_text

Made = TypeVar("Made")
Query = Callable[..., list[Any]]
"""The signature of `Database.query`."""
_PARAMETER = re.compile(r"\{(\w+):(Array\()?[^}]*\}")


def whole_sum(value: str) -> str:
    """The SQL for a sum of integers, which is 0 without any. SQLite's own `sum` fails if it exceeds 64 bits."""
    return f"CAST(total({value}) AS INTEGER)"


def pragma(db: sqlite3.Connection, name: str) -> int:
    """The value of a pragma."""
    ((value,),) = db.execute(f"PRAGMA {name}").fetchall()
    return int(value)


class Database(queries.Database):
    """The store for readers: any thread may use it, and each thread gets its own read-only connection."""

    sum_of, divided = whole_sum("{}"), "{} / {}"

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

    def table(self, name: str) -> str:
        return name

    def ask(self, select: str, **values: Any) -> list[Any]:
        return self.query(*translated(select, values))

    def query(self, select: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """The rows of a SELECT in SQLite's own syntax, with these values for its parameters."""
        db = self.connection()
        return whatever_texts(db, lambda: db.execute(select, values).fetchall())


def translated(select: str, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A shared query and its parameters in SQLite's syntax."""
    given = {name: to_text(value) if isinstance(value, list) else value for name, value in values.items()}
    return _PARAMETER.sub(_named, select), given


def _named(parameter: re.Match[str]) -> str:
    """A parameter of a shared query in SQLite's syntax."""
    name, of_list = parameter.groups()
    return f"(SELECT value FROM json_each(:{name}))" if of_list else f":{name}"


def whatever_texts(db: sqlite3.Connection, read: Callable[[], Made]) -> Made:
    """The result of `read` over this connection. If a text is invalid, which fails the whole query, it is read once more with
    replacement characters."""
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
