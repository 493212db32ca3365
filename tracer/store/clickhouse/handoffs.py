"""The events of hand-offs in ClickHouse, by the hand-off's name: the sidecars of a fleet find the other sides of their
hand-offs here."""

from __future__ import annotations

from collections.abc import Collection

from kvtrail.tracer.store.clickhouse.connection import Database
from kvtrail.tracer.store.handoffs import HandoffRow

FIELDS = tuple(name for name in HandoffRow._fields if name not in ("keys", "is_own"))
COLUMNS = ("key", *FIELDS, "tracer", "written")


def read(database: Database, keys: Collection[str], *, but: str = "") -> list[HandoffRow]:
    """The events of these hand-offs, in each sidecar's order of entry, without the events of one sidecar."""
    found: dict[tuple[str, int, str], HandoffRow] = {}
    rows = database.ask_in_parts(
        f"SELECT {', '.join(('key', *FIELDS))} FROM kvtrail_handoffs FINAL"
        " WHERE key IN {names:Array(String)} AND tracer != {but:String} ORDER BY tracer, written",
        keys,
        but=but,
    )
    for key, *values in rows:
        row = HandoffRow(**dict(zip(FIELDS, values, strict=True)), keys=(key,), is_own=False)
        found.setdefault((row.recorder, row.sequence, row.request), row)
    return list(found.values())
