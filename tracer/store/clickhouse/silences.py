"""Silences in ClickHouse: those of a fleet. None is deleted; a later record of the same id replaces the earlier one."""

from __future__ import annotations

from collections.abc import Sequence

from kvtrail.tracer.model.silences import Silence
from kvtrail.tracer.store import MAX_SILENCES
from kvtrail.tracer.store.clickhouse.connection import Connection
from kvtrail.tracer.store.clickhouse.database import Database, from_text, to_text


def put(connection: Connection, silences: Sequence[Silence]) -> None:
    """Store new and changed silences. Raises StoreError."""
    if silences:
        rows = [(each.id, each.ends_ns, to_text(each.as_dict()), each.written_ns) for each in silences]
        connection.insert("kvtrail_silences", ("id", "ends_ns", "body", "written"), rows)


def read(connection: Connection) -> list[Silence]:
    """The silences, those that end last first. Raises StoreError."""
    rows = connection.query(
        "SELECT body FROM kvtrail_silences FINAL ORDER BY isNull(ends_ns) DESC, ends_ns DESC, written DESC"
        f" LIMIT {MAX_SILENCES}"
    )
    return [Silence(**from_text(body)) for (body,) in rows]


class SilenceReader(Database):
    """The part of `Reader` that is about silences."""

    def silences(self) -> list[Silence]:
        return read(self.connection)

    def put_silences(self, changed: Sequence[Silence]) -> None:
        """As `put`: the one thing that an api over a fleet writes."""
        put(self.connection, changed)
