"""Engines, their launches and markers: rows and queries for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from kvtrail.tracer.liveness.engine import CausingFinding, EngineState, Launch, agreed
from kvtrail.tracer.model import engines
from kvtrail.tracer.model.engines import DESCRIPTION
from kvtrail.tracer.model.grouping import by_key
from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.store.damage import readable
from kvtrail.tracer.store.queries import Database, an_object, to_text

LAUNCH_COLUMNS = ("engine", "launch", "state", "began_ns", "ended_ns", "ended_by", "lost", "cause", "settings")
MARKER_COLUMNS = ("id", "kind", "at_ns", "engine", "text")


def launch_row(launch: Launch) -> tuple[Any, ...]:
    """The values of `LAUNCH_COLUMNS`. Raises OverflowError or UnicodeError if no database can hold it."""
    engine, name, state, *plain, _, _ = astuple(launch)
    return engine, name, str(state), *plain, to_text(launch.cause) if launch.cause else "", to_text(launch.settings)


def marker_row(marker: Marker) -> tuple[Any, ...]:
    """The values of `MARKER_COLUMNS`."""
    return marker.id, str(marker.kind), marker.at_ns, marker.engine, marker.text


class EngineReader(Database):
    """The part of `Reader` for engines."""

    def names(self) -> dict[str, str]:
        """The unique display name of each engine that ever reported."""
        return engines.names(self.descriptions())

    def engines(self) -> dict[str, dict[str, Any]]:
        """For each engine that ever reported: its display `name`; the fields of `model.engines.DESCRIPTION`, as its recorders
        report them; and the number of its `open` requests."""
        open_requests = f"SELECT engine, count(*) FROM {self.table('requests')} WHERE ended_ns IS NULL GROUP BY engine"
        return engines.listed(self.descriptions(), dict(self.ask(open_requests)))

    def heard(self) -> dict[str, int]:
        """By engine: the time of its last received data, updated at most once a minute."""
        return dict(self.ask(f"SELECT engine, last_ns FROM {self.table('engines')}"))

    def descriptions(self) -> dict[str, dict[str, str]]:
        """The descriptions of engines, in the order of their first report."""
        rows = self.ask(
            f"SELECT engine, {', '.join(DESCRIPTION)} FROM {self.table('engines')} ORDER BY first_ns, engine"
        )
        return {engine: dict(zip(DESCRIPTION, about, strict=True)) for engine, *about in rows}

    def launches(self) -> list[Launch]:
        """The launches of engines, each as agreed between the sidecars that know it."""
        rows = self.ask(f"SELECT {', '.join(LAUNCH_COLUMNS)} FROM {self.table('launches')}")
        reports = by_key(readable(rows, _launch, of="launches"), lambda each: (each.engine, each.launch))
        return list(map(agreed, reports.values()))

    def markers(self, *, since_ns: int, until_ns: int, limit: int) -> list[Marker]:
        """The stored markers of a time range, including its end, by time; the latest `limit` of each kind. Markers of
        launches are derived from `launches`."""
        found: list[Marker] = []
        for kind in MarkerKind:
            rows = self.ask(
                f"SELECT {', '.join(MARKER_COLUMNS)} FROM {self.table('markers')} WHERE kind = {{kind:String}}"
                " AND at_ns >= {since_ns:Int64} AND at_ns <= {until_ns:Int64} ORDER BY at_ns DESC LIMIT {limit:UInt32}",
                kind=str(kind),
                since_ns=since_ns,
                until_ns=until_ns,
                limit=limit,
            )
            found += readable(rows, _marker, of="markers")
        return sorted(found, key=lambda each: (each.at_ns, each.id))


def _launch(row: Sequence[Any]) -> Launch:
    *plain, cause, settings = row
    fields = dict(zip(LAUNCH_COLUMNS, plain, strict=False))
    fields["state"] = EngineState(fields["state"])
    return Launch(**fields, cause=CausingFinding(**an_object(cause)) if cause else None, settings=an_object(settings))


def _marker(row: Sequence[Any]) -> Marker:
    id_, kind, at_ns, engine, text = row
    return Marker(id=id_, kind=MarkerKind(kind), at_ns=at_ns, engine=engine, text=text)
