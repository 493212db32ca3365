"""The live view's lanes in SQLite: finds requests by any time window, in a store of any size.

Two columns make that fast. `reach` is the request's duration, rounded up to a power of two seconds: a request with this reach
can overlap the window only if it began at most `reach` before it, so one range of an index finds them. `tier` is a
pseudorandom function of the request's id (`request_rows.tier_of`). If a window has too many requests, the highest tiers are
shown. This is the same fair sample at every update, and it includes all findings unless they alone are too many.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvtrail.tracer.ledger.lanes import Lane, Lanes, Window
from kvtrail.tracer.store.damage import readable
from kvtrail.tracer.store.queries import from_text, to_text
from kvtrail.tracer.store.request_rows import FINDINGS_TIER, LOTS
from kvtrail.tracer.store.sqlite.database import translated, whatever_texts
from kvtrail.tracer.store.sqlite.requests import LONGEST_REACH, OPEN_REACH, RequestReader

_FIELDS = Lane.__struct_fields__
_LAST_NS = "max(last_ns, coalesce(ended_ns, 0))"
"""A request may have ended with its engine, after its own last event."""
_COLUMNS = ", ".join(_LAST_NS if name == "last_ns" else name for name in _FIELDS)
_REACHES = to_text([[n, 2**n * 10**9] for n in range(LONGEST_REACH + 1)])
BUDGET_S = 0.5
"""Maximum time of a search: a filter that matches almost nothing could scan a whole window. The answer reports the stop."""


class LaneReader(RequestReader):
    """The part of `Reader` for lanes."""

    def lanes(self, window: Window, *, live: Iterable[str]) -> Lanes:
        db, live = self.connection(), [*live]
        return whatever_texts(db, lambda: self._lanes(db, window, live))

    def _lanes(self, db: sqlite3.Connection, window: Window, live: list[str]) -> Lanes:
        """The lanes of a window, at most `window.limit` of them. `live` are the running engines."""
        tiers = partial(self._tier, db, window, live)
        deadline_s = time.monotonic() + BUDGET_S
        db.set_progress_handler(lambda: time.monotonic() > deadline_s, 20_000)
        try:
            # Half of the lanes are for requests without findings, so that findings are shown beside normal requests.
            drifting = _sample(tiers, FINDINGS_TIER, room=max(1, window.limit // 2))
            others = _sample(tiers, 0, room=window.limit - len(drifting.rows))
        finally:
            db.set_progress_handler(None, 0)
        lanes = readable((*drifting.rows, *others.rows), _lane, of="lanes")
        return Lanes(
            lanes=sorted(lanes, key=lambda lane: (lane.started_ns, lane.request)),
            known=sum(len(part.rows) * 2**part.lowest for part in (drifting, others)),
            is_sample=drifting.lowest + others.lowest > 0,
            has_all_findings=drifting.lowest == 0 and drifting.is_whole,
            is_whole=drifting.is_whole and others.is_whole,
        )

    def _tier(
        self, db: sqlite3.Connection, window: Window, live: list[str], tier: int, limit: int
    ) -> Iterator[Sequence[Any]]:
        conditions, values = self.meeting(
            search=window.search, status=window.status, engines=window.engines, where=window.where
        )
        values |= {
            "tier": tier, "reaches": _REACHES, "from_ns": window.from_ns, "to_ns": window.to_ns, "live": live, "limit": limit,
        }  # fmt: skip
        # In SQLite, CROSS JOIN fixes the order: one range of the index for each reach.
        ended = (
            f"SELECT {_COLUMNS} FROM json_each({{reaches:String}}) AS r CROSS JOIN requests INDEXED BY requests_by_lane"
            " ON tier = {tier:Int64} AND reach = r.value ->> 0"
            " AND started_ns BETWEEN {from_ns:Int64} - (r.value ->> 1) AND {to_ns:Int64}"
            f" {conditions} AND {_LAST_NS} >= {{from_ns:Int64}} LIMIT {{limit:Int64}}"
        )
        yield from db.execute(*translated(ended, values))
        still_open = (
            f"SELECT {_COLUMNS} FROM requests INDEXED BY requests_by_lane {conditions} AND tier = {{tier:Int64}}"
            f" AND reach = {OPEN_REACH} AND started_ns <= {{to_ns:Int64}}"
            f" AND ({_LAST_NS} >= {{from_ns:Int64}} OR engine IN {{live:Array(String)}}) LIMIT {{limit:Int64}}"
        )
        yield from db.execute(*translated(still_open, values))


_Tiers = Callable[[int, int], Iterable[Sequence[Any]]]
"""Returns the rows of a tier, by its number, up to a limit."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Rows of all tiers from the `lowest` up: one of every 2**lowest requests."""

    rows: list[Sequence[Any]]
    lowest: int
    is_whole: bool


def _sample(tiers: _Tiers, base: int, *, room: int) -> _Sample:
    rows: list[Sequence[Any]] = []
    for lot in range(LOTS - 1, -1, -1):
        fresh: list[Sequence[Any]] = []
        try:
            fresh.extend(tiers(base + lot, room - len(rows) + 1))
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
            return _Sample([*rows, *fresh][:room], lot, is_whole=False)
        if len(rows) + len(fresh) > room:
            # A part of a tier is not a fair sample; it is shown only if there is nothing else.
            return _Sample(rows or fresh[:room], lot + 1 if rows else lot, is_whole=True)
        rows += fresh
    return _Sample(rows, 0, is_whole=True)


def _lane(row: Sequence[Any]) -> Lane:
    fields = dict(zip(_FIELDS, row, strict=True))
    for name in ("changes", "transfers"):
        fields[name] = tuple(from_text(fields[name]))
    return Lane(**{**fields, "complete": bool(fields["complete"])})
