"""The live view's lanes in SQLite: requests are found by any window of time, however many there are.

Two columns make that fast. `reach` is how long the request lasted, as a power of two seconds: of each reach, only requests
that began within it before the window can overlap the window, so one range of an index finds them. `tier` is drawn by lot
from the request's id (`request_rows.tier_of`). A window with more requests than can be shown gives the highest tiers. That is
the same fair sample at every update, and it includes all findings unless they alone are too many.
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
from kvtrail.tracer.store.sqlite import measures
from kvtrail.tracer.store.sqlite.database import whatever_texts
from kvtrail.tracer.store.sqlite.requests import LONGEST_REACH, OPEN_REACH, RequestReader

_FIELDS = Lane.__struct_fields__
_LAST_NS = "max(last_ns, coalesce(ended_ns, 0))"
"""A request may have ended with its engine, after its own last event."""
_COLUMNS = ", ".join(_LAST_NS if name == "last_ns" else name for name in _FIELDS)
_REACHES = to_text([[n, 2**n * 10**9] for n in range(LONGEST_REACH + 1)])
MAX_NAMED = 20_000
"""Requests that may be looked up one by one."""
BUDGET_S = 0.5
"""Filters that match almost nothing could make the store scan a whole window. The search stops here and reports it."""


class LaneReader(RequestReader):
    """The part of `Reader` that is about lanes."""

    def lanes(self, window: Window, *, live: Iterable[str]) -> Lanes:
        named = self.few_requests(search=window.search, status=window.status, until_ns=window.to_ns, limit=MAX_NAMED)
        db = self.connection()
        return whatever_texts(db, lambda: find(db, window, live=live, named=named))


def find(db: sqlite3.Connection, window: Window, *, live: Iterable[str], named: Sequence[int] | None = None) -> Lanes:
    """The lanes of a window, at most `window.limit` of them.

    Args:
        live: the engines that are running.
        named: the numbers of all requests that the window's search and status can match, if these are few.
    """
    deadline_s = time.monotonic() + BUDGET_S
    db.set_progress_handler(lambda: time.monotonic() > deadline_s, 20_000)
    try:
        tiers = partial(_tier, db, window, live) if named is None else _tiers_of(db, window, live, named)
        # Half of the room is for requests without findings: what is wrong is seen beside what is usual.
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


_Tiers = Callable[[int, int], Iterable[Sequence[Any]]]
"""Gives the rows of a tier, by its number, up to a limit."""


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
            # Part of a tier would not be a fair sample; it is shown only if there is nothing else.
            return _Sample(rows or fresh[:room], lot + 1 if rows else lot, is_whole=True)
        rows += fresh
    return _Sample(rows, 0, is_whole=True)


def _tiers_of(db: sqlite3.Connection, window: Window, live: Iterable[str], named: Sequence[int]) -> _Tiers:
    """The tiers of the named requests; each is looked up, however long the window is."""
    conditions, values = _filters(window)
    query = (
        f"SELECT tier, {_COLUMNS} FROM json_each(?) AS n CROSS JOIN requests ON number = n.value"
        " WHERE tier IS NOT NULL AND started_ns <= ?"
        f" AND ({_LAST_NS} >= ? OR (reach = {OPEN_REACH} AND engine IN (SELECT value FROM json_each(?)))){conditions}"
    )
    by_tier: dict[int, list[Sequence[Any]]] = {}
    for tier, *row in db.execute(query, (to_text(named), window.to_ns, window.from_ns, to_text(list(live)), *values)):
        by_tier.setdefault(tier, []).append(row)
    return lambda number, limit: by_tier.get(number, [])[:limit]


def _tier(
    db: sqlite3.Connection, window: Window, live: Iterable[str], number: int, limit: int
) -> Iterator[Sequence[Any]]:
    conditions, values = _filters(window)
    # In SQLite, CROSS JOIN fixes the order: one range of the index for each reach.
    ended = (
        f"SELECT {_COLUMNS} FROM json_each(?) AS r CROSS JOIN requests INDEXED BY requests_by_lane"
        " ON tier = ? AND reach = r.value ->> 0 AND started_ns BETWEEN ? - (r.value ->> 1) AND ?"
        f" WHERE {_LAST_NS} >= ?{conditions} LIMIT ?"
    )
    from_ns, to_ns = window.from_ns, window.to_ns
    yield from db.execute(ended, (_REACHES, number, from_ns, to_ns, from_ns, *values, limit))
    still_open = (
        f"SELECT {_COLUMNS} FROM requests INDEXED BY requests_by_lane WHERE tier = ? AND reach = ? AND started_ns <= ?"
        f" AND ({_LAST_NS} >= ? OR engine IN (SELECT value FROM json_each(?))){conditions} LIMIT ?"
    )
    yield from db.execute(still_open, (number, OPEN_REACH, to_ns, from_ns, to_text(list(live)), *values, limit))


def _filters(window: Window) -> tuple[str, list[Any]]:
    wanted = {**({"status = ?": window.status} if window.status else {}), **measures.met(window.where)}
    conditions = [f" AND {condition}" for condition in wanted]
    values = [*wanted.values()]
    if window.engines is not None:
        conditions.append(" AND engine IN (SELECT value FROM json_each(?))")
        values.append(to_text([*window.engines]))
    if window.search:
        conditions.append(" AND (instr(request, ?) OR instr(external, ?))")
        values += [window.search] * 2
    return "".join(conditions), values


def _lane(row: Sequence[Any]) -> Lane:
    fields = dict(zip(_FIELDS, row, strict=True))
    for name in ("changes", "transfers"):
        fields[name] = tuple(from_text(fields[name]))
    return Lane(**{**fields, "complete": bool(fields["complete"])})
