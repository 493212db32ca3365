"""Lanes in ClickHouse: the requests of a window of time, or a fair sample of them.

`tier` is a pseudorandom function of the request's id (`request_rows.tier_of`). If a window has too many requests, the highest
tiers are shown. This is the same fair sample at every update, and it has all findings unless they alone are too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.tracer.ledger.lanes import Lane, Lanes, Window
from kvtrail.tracer.store.clickhouse.requests import RequestReader
from kvtrail.tracer.store.request_rows import FINDINGS_TIER, LOTS

_FIELDS = Lane.__struct_fields__
_LAST_NS = "greatest(last_ns, coalesce(ended_ns, 0))"
"""A request may have ended with its engine, after its own last event."""
_COLUMNS = ", ".join(_LAST_NS if name == "last_ns" else name for name in _FIELDS)


class LaneReader(RequestReader):
    """The part of `Reader` for lanes."""

    def lanes(self, window: Window, *, live: Iterable[str]) -> Lanes:
        conditions, values = self.meeting(
            search=window.search,
            status=window.status,
            engines=window.engines,
            before_ns=window.to_ns + 1,
            where=window.where,
        )
        overlapping = (
            f"FROM kvtrail_requests FINAL {conditions} AND tier IS NOT NULL"
            f" AND ({_LAST_NS} >= {{from_ns:Int64}} OR (ended_ns IS NULL AND engine IN {{live:Array(String)}}))"
        )
        values |= {"from_ns": window.from_ns, "live": [*live]}
        counts = dict(self.ask(f"SELECT tier, count() {overlapping} GROUP BY tier", **values))
        # Half of the lanes are for requests without findings, so that findings are shown beside normal requests.
        drifting = _choose(counts, FINDINGS_TIER, room=max(1, window.limit // 2))
        others = _choose(counts, 0, room=window.limit - drifting.count)
        rows = [
            row
            for part in (drifting, others)
            if part.count
            for row in self.ask(
                f"SELECT {_COLUMNS} {overlapping} AND tier BETWEEN {{low:UInt8}} AND {{high:UInt8}}"
                " ORDER BY started_ns, request LIMIT {limit:UInt32}",
                low=part.low,
                high=part.high,
                limit=part.count,
                **values,
            )
        ]
        lanes = [_lane(row) for row in rows]
        return Lanes(
            lanes=sorted(lanes, key=lambda lane: (lane.started_ns, lane.request)),
            known=sum(counts.values()),
            is_sample=sum(counts.values()) > len(lanes),
            has_all_findings=drifting.has_all,
            is_whole=True,
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    """The tiers to show: from `low` to `high`, at most `count` requests of them."""

    low: int
    high: int
    count: int
    has_all: bool


def _choose(counts: Mapping[int, int], base: int, *, room: int) -> _Choice:
    """As many whole tiers as fit, from the highest down; a part of the highest tier, if it alone is too large."""
    high = low = base + LOTS - 1
    chosen = 0
    for tier in range(high, base - 1, -1):
        more = counts.get(tier, 0)
        if chosen + more > room:
            if not chosen:
                return _Choice(tier, tier, room, has_all=False)
            return _Choice(low, high, chosen, has_all=False)
        low, chosen = tier, chosen + more
    return _Choice(low, high, chosen, has_all=True)


def _lane(row: Sequence[Any]) -> Lane:
    fields = dict(zip(_FIELDS, row, strict=True))
    return Lane(**{**fields, **{name: tuple(fields[name]) for name in ("changes", "transfers")}})
