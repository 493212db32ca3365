"""Findings in ClickHouse: one by one, by number over time, and where they occur."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from kvtrail.tracer.ledger.lanes import Lane, Window
from kvtrail.tracer.model.known import Place, Sighting
from kvtrail.tracer.store import EVERY, FindingFilter
from kvtrail.tracer.store.clickhouse.database import ASKED_TOGETHER, NAMED, Database, all_of, from_text

_BRIEF = {
    **{name: name for name in ("id", "rule", "severity", "engine", "connector", "request")},
    **{name: f"JSONExtractInt(body, '{name}')" for name in ("count", "healed")},
}
"""What is read of each finding where many are counted."""
_PLACE, _LISTED = "(rule, engine, connector)", "Array(Tuple(String, String, String))"


class FindingReader(Database):
    """The part of `Reader` that is about findings."""

    def findings(
        self, which: FindingFilter = EVERY, *, limit: int = 100, oldest_first: bool = False
    ) -> list[dict[str, Any]]:
        conditions, values = _conditions(which)
        order = "ASC" if oldest_first else "DESC"
        return self._bodies(f"{conditions} ORDER BY last_ns {order} LIMIT {{limit:UInt32}}", limit=limit, **values)

    def findings_in_brief(self, which: FindingFilter = EVERY, *, limit: int) -> list[dict[str, Any]]:
        conditions, values = _conditions(which)
        rows = self.query(
            f"SELECT {', '.join(_BRIEF.values())} FROM kvtrail_findings FINAL {conditions}"
            " ORDER BY last_ns DESC LIMIT {limit:UInt32}",
            limit=limit,
            **values,
        )
        return [dict(zip(_BRIEF, row, strict=True)) for row in rows]

    def findings_trend(self, which: FindingFilter = EVERY, *, step_ns: int) -> list[dict[str, Any]]:
        conditions, values = _conditions(which)
        rows = self.query(
            f"""SELECT rule, severity, intDiv(last_ns, {{step_ns:Int64}}) * {{step_ns:Int64}} AS at_ns, count()
            FROM kvtrail_findings FINAL {conditions}
            GROUP BY rule, severity, at_ns ORDER BY at_ns, rule""",
            step_ns=step_ns,
            **values,
        )
        return [dict(zip(("rule", "severity", "at_ns", "findings"), row, strict=True)) for row in rows]

    def finding_counts(self, which: FindingFilter = EVERY) -> dict[Place, int]:
        conditions, values = _conditions(which)
        counts = f"SELECT rule, engine, connector, count() FROM kvtrail_findings FINAL {conditions} GROUP BY ALL"
        return {Place(*place): count for *place, count in self.query(counts, **values)}

    def sightings(self) -> list[Sighting]:
        rows = self.query(
            "SELECT rule, engine, connector, min(first_ns), max(last_ns) FROM kvtrail_findings"
            " GROUP BY rule, engine, connector ORDER BY rule, engine, connector"
        )
        return [Sighting(Place(*place), first_ns, last_ns) for *place, first_ns, last_ns in rows]

    def marks(self, window: Window, lanes: Sequence[Lane], *, limit: int) -> list[dict[str, Any]]:
        marked = sorted({(lane.request, lane.engine) for lane in lanes if lane.findings})
        found: list[dict[str, Any]] = []
        for at in range(0, len(marked), ASKED_TOGETHER):
            requests, engines = zip(*islice(marked, at, at + ASKED_TOGETHER), strict=True)
            found += self._bodies(
                f"WHERE {NAMED} LIMIT {{limit:UInt32}}",
                requests=[*requests],
                engines=[*engines],
                limit=limit,
            )
        found += self._bodies(
            "WHERE request = '' AND last_ns BETWEEN {from_ns:Int64} AND {to_ns:Int64} LIMIT {limit:UInt32}",
            from_ns=window.from_ns,
            to_ns=window.to_ns,
            limit=limit,
        )
        return found[:limit]

    def _bodies(self, rest: str, **values: Any) -> list[dict[str, Any]]:
        return [from_text(body) for (body,) in self.query(f"SELECT body FROM kvtrail_findings FINAL {rest}", **values)]


def _conditions(which: FindingFilter) -> tuple[str, dict[str, Any]]:
    return all_of(
        {
            "request = {request:String}": which.request,
            "engine = {engine:String}": which.engine,
            "rule = {rule:String}": which.rule,
            "severity = {severity:String}": which.severity,
            "connector = {connector:String}": which.connector,
            "engine IN {engines:Array(String)}": None if which.engines is None else [*which.engines],
            "last_ns >= {since_ns:Int64}": which.since_ns,
            "last_ns < {until_ns:Int64}": which.until_ns,
            f"{_PLACE} IN {{only:{_LISTED}}}": None if which.only is None else _places(which.only),
            f"{_PLACE} NOT IN {{but:{_LISTED}}}": None if which.but is None else _places(which.but),
        }
    )


def _places(places: Collection[Place]) -> list[tuple[str, ...]]:
    return [tuple(place) for place in places]
