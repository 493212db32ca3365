"""The table behind the live view: a small row for each request, found by any window of time, however many there are.

Two columns make that fast. `reach` is how long the request lasted, as a power of two seconds: of each reach, only requests
that began within it before the window can overlap the window, so one range of an index finds them. `tier` is drawn by lot
from the request's id: half of all requests are in tier 0, a quarter in tier 1, and so on. Requests with findings, or that
failed, have tiers of their own above these. A window with more requests than can be shown gives the highest tiers. That is
the same fair sample at every update, and it includes all findings unless they alone are too many.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvtrail.tracer.ledger.lanes import Lane, Lanes, Window
from kvtrail.tracer.store.sqlite import measures
from kvtrail.tracer.store.sqlite.database import from_text, readable, to_text, whatever_texts
from kvtrail.tracer.store.sqlite.requests import RequestReader

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS lanes (
    number INTEGER PRIMARY KEY,  -- the request's
    request TEXT NOT NULL, engine TEXT NOT NULL, external TEXT NOT NULL, connector TEXT NOT NULL,
    status TEXT NOT NULL, verdict TEXT NOT NULL, findings INTEGER NOT NULL, complete INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER,
    tier INTEGER NOT NULL, reach INTEGER NOT NULL, changes TEXT NOT NULL, transfers TEXT NOT NULL
)""",
    "CREATE INDEX IF NOT EXISTS lanes_by_time ON lanes (tier, reach, started_ns, last_ns)",
)
_FIELDS = (
    "request", "engine", "external", "connector", "status", "verdict", "findings", "complete", "started_ns", "last_ns",
    "ended_ns", "changes", "transfers",
)  # fmt: skip
_COLUMNS = ", ".join(f"lanes.{name}" for name in _FIELDS)
_UPSERT = (
    f"INSERT INTO lanes (number, {', '.join(_FIELDS)}, tier, reach)"
    f" SELECT number, {', '.join('?' * (len(_FIELDS) + 2))} FROM requests WHERE request = ? AND engine = ?"
    " ON CONFLICT (number) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in (*_FIELDS[2:], "tier", "reach"))
)
LOTS = 15
FINDINGS_TIER = LOTS
"""The lowest tier of requests with findings, or that failed; the tiers of all others are below it."""
OPEN_REACH = 63
"""The reach of requests that have not ended: they extend to the present."""
_REACHES = to_text([[n, 2**n * 10**9] for n in range(26)])
"""26 powers of two seconds are more than a year."""
MAX_NAMED = 20_000
"""Requests that may be looked up one by one."""
BUDGET_S = 0.5
"""Filters that match almost nothing could make the store scan a whole window. The search stops here and reports it."""


def put(db: sqlite3.Connection, lanes: Iterable[Lane]) -> None:
    """Store new and changed lanes, within the open transaction; their requests are there already."""
    db.executemany(_UPSERT, map(_row, lanes))


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the lanes of requests that began since then, within the open transaction."""
    db.execute("DELETE FROM lanes WHERE started_ns >= ? OR number NOT IN (SELECT number FROM requests)", (since_ns,))


def _row(lane: Lane) -> tuple[Any, ...]:
    lot = zlib.crc32(f"{lane.engine} {lane.request}".encode()) | 1 << (LOTS - 1)
    tier = (lot & -lot).bit_length() - 1
    if lane.findings or lane.status == "failed":
        tier += FINDINGS_TIER
    reach = OPEN_REACH
    if lane.ended_ns is not None:
        lasted_s = max(0, lane.last_ns - lane.started_ns) // 10**9
        reach = min(int(lasted_s).bit_length(), 25)
    *plain, changes, transfers = (getattr(lane, name) for name in _FIELDS)
    return (*plain, to_text(changes), to_text(transfers), tier, reach, lane.request, lane.engine)


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
        f"SELECT tier, {_COLUMNS} FROM json_each(?) AS n CROSS JOIN lanes ON lanes.number = n.value WHERE started_ns <= ?"
        f" AND (last_ns >= ? OR (reach = {OPEN_REACH} AND engine IN (SELECT value FROM json_each(?)))){conditions}"
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
        f"SELECT {_COLUMNS} FROM json_each(?) AS r CROSS JOIN lanes INDEXED BY lanes_by_time"
        " ON tier = ? AND reach = r.value ->> 0 AND started_ns BETWEEN ? - (r.value ->> 1) AND ?"
        f" WHERE last_ns >= ?{conditions} LIMIT ?"
    )
    from_ns, to_ns = window.from_ns, window.to_ns
    yield from db.execute(ended, (_REACHES, number, from_ns, to_ns, from_ns, *values, limit))
    still_open = (
        f"SELECT {_COLUMNS} FROM lanes INDEXED BY lanes_by_time WHERE tier = ? AND reach = ? AND started_ns <= ?"
        f" AND (last_ns >= ? OR engine IN (SELECT value FROM json_each(?))){conditions} LIMIT ?"
    )
    yield from db.execute(still_open, (number, OPEN_REACH, to_ns, from_ns, to_text(list(live)), *values, limit))


def _filters(window: Window) -> tuple[str, list[Any]]:
    wanted: dict[str, Any] = {"connector": window.connector, "status": window.status}
    wanted = {f"lanes.{name} = ?": value for name, value in wanted.items() if value}
    wanted |= measures.met(window.where, by="lanes")
    conditions = [f" AND {condition}" for condition in wanted]
    values = [*wanted.values()]
    if window.engines is not None:
        conditions.append(" AND lanes.engine IN (SELECT value FROM json_each(?))")
        values.append(to_text([*window.engines]))
    if window.search:
        conditions.append(" AND (instr(lanes.request, ?) OR instr(lanes.external, ?))")
        values += [window.search] * 2
    return "".join(conditions), values


def _lane(row: Sequence[Any]) -> Lane:
    fields = dict(zip(_FIELDS, row, strict=True))
    for name in ("changes", "transfers"):
        fields[name] = tuple(from_text(fields[name]))
    return Lane(**{**fields, "complete": bool(fields["complete"])})
