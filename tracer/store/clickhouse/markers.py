"""Markers in ClickHouse: resets and drops of events, of all tracers."""

from __future__ import annotations

from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.store.clickhouse.database import Database

TABLE = "kvtrail_markers"
COLUMNS = ("id", "kind", "at_ns", "engine", "text", "earliest")
_LATEST = 2**63


def row_of(marker: Marker) -> tuple[object, ...]:
    """The row of a marker. Of two with one id, the earlier stays."""
    return marker.id, str(marker.kind), marker.at_ns, marker.engine, marker.text, _LATEST - marker.at_ns


class MarkerReader(Database):
    """The part of `Reader` that is about markers."""

    def markers(self, *, since_ns: int, until_ns: int, limit: int) -> list[Marker]:
        rows = self.query(
            f"SELECT id, kind, at_ns, engine, text FROM {TABLE} FINAL"
            " WHERE kind IN {kinds:Array(String)} AND at_ns >= {since_ns:Int64} AND at_ns <= {until_ns:Int64}"
            " ORDER BY at_ns DESC LIMIT {limit:UInt32} BY kind",
            kinds=[*MarkerKind],
            since_ns=since_ns,
            until_ns=until_ns,
            limit=limit,
        )
        found = [
            Marker(id=id_, kind=MarkerKind(kind), at_ns=at_ns, engine=engine, text=text)
            for id_, kind, at_ns, engine, text in rows
        ]
        return sorted(found, key=lambda each: (each.at_ns, each.id))
