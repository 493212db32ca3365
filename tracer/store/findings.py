"""Findings: rows and queries for both databases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kvtrail.tracer.ledger.lanes import Lane, Window
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.known import Place, Sighting
from kvtrail.tracer.store import EVERY, FindingFilter
from kvtrail.tracer.store.damage import readable
from kvtrail.tracer.store.queries import Database, all_of, an_object, to_text

_BRIEF = ("id", "rule", "severity", "engine", "connector", "request", "count", "healed")
"""The columns that are read when many findings are counted."""
_OTHERS = ("first_ns", "last_ns")
COLUMNS = (*_BRIEF, *_OTHERS, "body")
_NEEDED = ("id", "rule", "severity", "request", "engine", *_OTHERS)
_PLACE = "rule || char(10) || engine || char(10) || connector"


def row_of(finding: Finding) -> tuple[Any, ...]:
    """The values of `COLUMNS`. Raises OverflowError or UnicodeError if no database can hold it."""
    values = finding.as_dict()
    values |= {"severity": str(finding.severity), "body": to_text(values)}
    return tuple(values[name] for name in COLUMNS)


class FindingReader(Database):
    """The part of `Reader` for findings.

    Attributes:
        by_index: SQL after the table name that selects an index for counting findings without reading their long bodies.
    """

    by_index = ""

    def findings(
        self, which: FindingFilter = EVERY, *, limit: int = 100, oldest_first: bool = False
    ) -> list[dict[str, Any]]:
        """Findings by the time at which they were last seen: latest or oldest first."""
        return self._bodies(*self._first("body", which, limit, "ASC" if oldest_first else "DESC"))

    def findings_in_brief(self, which: FindingFilter = EVERY, *, limit: int) -> list[dict[str, Any]]:
        """For each finding, latest first: its `id`, `rule`, `severity`, `engine`, `connector` and `request`, how often it was
        seen (`count`) and `healed`. These fields determine its impact."""
        select, values = self._first(", ".join(_BRIEF), which, limit, "DESC")
        return [dict(zip(_BRIEF, row, strict=True)) for row in self.ask(select, **values)]

    def finding_counts(self, which: FindingFilter = EVERY, *, step_ns: int) -> list[tuple[Place, str, int, int]]:
        """The number of findings by place, severity and interval of `step_ns`: these three (the interval as its beginning),
        and the number. A finding counts in the interval in which it was last seen."""
        conditions, values = _conditions(which)
        begin = f"{self.divided.format('last_ns', '{step_ns:Int64}')} * {{step_ns:Int64}}"
        rows = self.ask(
            f"SELECT rule, engine, connector, severity, {begin} AS at_ns, count(*)"
            f" FROM {self.table('findings')} {self.by_index} {conditions}"
            " GROUP BY rule, engine, connector, severity, at_ns",
            step_ns=step_ns,
            **values,
        )
        return [(Place(*place), severity, at_ns, number) for *place, severity, at_ns, number in rows]

    def sightings(self, which: FindingFilter = EVERY) -> list[Sighting]:
        """The times at which these findings were first and last seen, by place."""
        conditions, values = _conditions(which)
        rows = self.ask(
            f"SELECT rule, engine, connector, min(first_ns), max(last_ns) FROM {self.table('findings')} {self.by_index}"
            f" {conditions} GROUP BY rule, engine, connector ORDER BY 1, 2, 3",
            **values,
        )
        return [Sighting(Place(*place), first_ns, last_ns) for *place, first_ns, last_ns in rows]

    def marks(self, window: Window, lanes: Sequence[Lane], *, limit: int) -> list[dict[str, Any]]:
        """The findings of these lanes, and the findings of the window without a request."""
        marked = {(lane.engine, lane.request) for lane in lanes if lane.findings}
        select = f"SELECT body FROM {self.table('findings')} WHERE"
        rows = self.ask_in_parts(
            f"{select} request IN {{names:Array(String)}} LIMIT {{limit:UInt32}}",
            sorted({request for _, request in marked}),
            limit=limit,
        )
        found = [
            each for each in readable(rows, _finding, of="findings") if (each["engine"], each["request"]) in marked
        ]
        found += self._bodies(
            f"{select} request = '' AND last_ns >= {{from_ns:Int64}} AND last_ns <= {{to_ns:Int64}} LIMIT {{limit:UInt32}}",
            {"from_ns": window.from_ns, "to_ns": window.to_ns, "limit": limit},
        )
        return found[:limit]

    def _first(self, columns: str, which: FindingFilter, limit: int, order: str) -> tuple[str, dict[str, Any]]:
        """The query for these columns of the first findings, by the time at which they were last seen: an index gives their
        ids."""
        conditions, values = _conditions(which)
        findings, first = self.table("findings"), f"ORDER BY last_ns {order}, id LIMIT {{limit:UInt32}}"
        chosen = f"SELECT id FROM {findings} {conditions} {first}"
        return f"SELECT {columns} FROM {findings} WHERE id IN ({chosen}) {first}", {**values, "limit": limit}

    def _bodies(self, select: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        return readable(self.ask(select, **values), _finding, of="findings")


def _finding(row: Sequence[Any]) -> dict[str, Any]:
    finding = an_object(row[0])
    return {**finding, **{name: finding[name] for name in _NEEDED}}


def _conditions(which: FindingFilter) -> tuple[str, dict[str, Any]]:
    return all_of(
        {
            "request = {request:String}": which.request,
            "rule = {rule:String}": which.rule,
            "severity = {severity:String}": which.severity,
            "connector = {connector:String}": which.connector,
            "engine IN {engines:Array(String)}": which.engines,
            "last_ns >= {since_ns:Int64}": which.since_ns,
            "last_ns < {until_ns:Int64}": which.until_ns,
            f"{_PLACE} IN {{only:Array(String)}}": _places(which.only),
            f"{_PLACE} NOT IN {{but:Array(String)}}": _places(which.but),
        }
    )


def _places(places: Collection[Place] | None) -> list[str] | None:
    return None if places is None else ["\n".join(place) for place in places]
