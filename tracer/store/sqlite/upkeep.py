"""Verifies a store and reports its faults."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite import bodies, log, opening
from kvtrail.tracer.store.sqlite.database import Database

MAX_NAMED = 20
"""Maximum number of faults of a kind that are named; the others are only counted."""
_TEXTS = {
    "requests": ("changes", "transfers"),
    "findings": ("body",),
    "request_measures": ("tokens",),
}
"""Columns that must contain JSON, by table."""


class Fault(NamedTuple):
    """A fault of a store, in a sentence, and whether data was lost that a rebuild cannot restore."""

    text: str
    is_lost: bool = True


def verify(path: Path) -> Iterator[Fault]:
    """The faults of a store; none if it is intact. The check sees the store as it is when the check begins, even while
    a tracer writes to it.

    Raises:
        StoreError: there is no such store, or it cannot be read at all.
    """
    opening.check_file(path)
    database = Database(path)
    try:
        database.query("BEGIN")
        broken = [report for (report,) in database.query(f"PRAGMA integrity_check({MAX_NAMED})") if report != "ok"]
        yield from (Fault(f"the file is damaged: {report}") for report in broken)
        if not broken:
            yield from _wrong_texts(database)
            yield from _wrong_log(database)
    except sqlite3.Error as error:
        if not opening.is_damage(error):
            raise StoreError(f"cannot read the store {path}: {error}") from error
        yield Fault(f"the file is damaged: {error}")
    finally:
        database.close()


def _wrong_texts(database: Database) -> Iterator[Fault]:
    for table, columns in _TEXTS.items():
        for column in columns:
            ((count,),) = database.query(f"SELECT count(*) FROM {table} WHERE NOT json_valid({column})")
            if count:
                yield Fault(f"{count} rows of {table} cannot be read: their {column} is damaged", is_lost=False)
    if count := sum(map(_is_damaged, database.connection().execute("SELECT body FROM requests"))):
        yield Fault(f"{count} rows of requests cannot be read: their body is damaged", is_lost=False)


def _is_damaged(row: Sequence[Any]) -> bool:
    try:
        bodies.unpacked(row[0])
    except (TypeError, ValueError):
        return True
    return False


def _wrong_log(database: Database) -> Iterator[Fault]:
    """Unreadable chunks, and requests of the log without a row."""
    ((end, settled),) = database.query("SELECT number, settled FROM log_end")
    decoder, expected, unreadable = ProtobufDecoder(), None, 0
    of_log: set[tuple[str, str]] = set()
    for number, spans, payload in log.parts(database.query, after=0):
        if expected is not None and number != expected:
            yield Fault(f"the log has a gap: spans {expected} to {number - 1} are not in it")
        expected = number + spans
        if not payload:
            unreadable += spans
        elif number <= settled:
            events = decoder.decoded(payload).events
            of_log.update((event.engine, event.request) for event in events if event.request is not None)
    if unreadable:
        yield Fault(f"{unreadable} spans of the log cannot be read")
    if expected is not None and expected != end + 1:
        yield Fault(f"the log ends at span {expected - 1}, and not at {end}")
    rows = set(database.query("SELECT engine, request FROM requests"))
    if missing := of_log - rows:
        names = ", ".join(request for _, request in sorted(missing)[:MAX_NAMED])
        more = " …" if len(missing) > MAX_NAMED else ""
        yield Fault(f"{len(missing)} requests of the log have no row: {names}{more}", is_lost=False)
