"""The table behind the live view: a small row for each request, found by any window of time, however many there are.

Two numbers of a row make that fast. Its `reach` is how long the request lasted, as a power of two seconds: of each reach
only those can overlap a window that began within reach of it, so one range of an index finds them. Its `tier` is a lot that
the request drew by its id: half of all are in tier 0, a quarter in tier 1, and so on; what was found guilty has tiers of its
own, above these. A window with more requests than can be shown gives the highest tiers, which is the same fair sample at
every update, and the guilty are all in it unless they alone are too many.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kvtrail.tracer.detect.lanes import Lane, Lanes, Window
from kvtrail.tracer.store.sqlite.texts import from_text, to_text

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS lanes (
    number INTEGER PRIMARY KEY,
    request TEXT NOT NULL, engine TEXT NOT NULL, external TEXT NOT NULL, connector TEXT NOT NULL,
    status TEXT NOT NULL, verdict TEXT NOT NULL, findings INTEGER NOT NULL, complete INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER,
    tier INTEGER NOT NULL, reach INTEGER NOT NULL, changes TEXT NOT NULL, transfers TEXT NOT NULL,
    UNIQUE (request, engine)
)""",
    "CREATE INDEX IF NOT EXISTS lanes_by_time ON lanes (tier, reach, started_ns, last_ns)",
)
_COLUMNS = (
    "request", "engine", "external", "connector", "status", "verdict", "findings", "complete", "started_ns", "last_ns",
    "ended_ns", "changes", "transfers",
)  # fmt: skip
LOTS = 15
GUILTY_TIER = LOTS
"""The lowest of requests with findings, or that failed; the others are below."""
OPEN_REACH = 63
"""Of requests that have not ended: they reach to the present."""
_REACHES = to_text([[n, 2**n * 10**9] for n in range(26)])
"""26 powers of two seconds are more than a year."""
NAMED = 20_000
"""So many requests can be looked up one by one."""
BUDGET_S = 0.5
"""A window whose filters fit almost nothing could make the store look through all of it; it stops here and says so."""


def row(lane: Lane) -> tuple[Any, ...]:
    """The row of a lane, as `UPSERT` takes it."""
    values = (
        lane.request, lane.engine, lane.external, lane.connector, lane.status, lane.verdict, lane.findings, lane.complete,
        lane.started_ns, lane.last_ns, lane.ended_ns, to_text(lane.changes), to_text(lane.transfers),
    )  # fmt: skip
    return (*values, tier(lane), reach(lane))


def tier(lane: Lane) -> int:
    """The request's tier, from 0; the same each time it is asked."""
    lot = zlib.crc32(f"{lane.engine} {lane.request}".encode()) | 1 << (LOTS - 1)
    is_guilty = bool(lane.findings) or lane.status == "failed"
    return (lot & -lot).bit_length() - 1 + GUILTY_TIER * is_guilty


def reach(lane: Lane) -> int:
    """The power of two seconds within which the request's life lies."""
    if lane.ended_ns is None:
        return OPEN_REACH
    lasted_s = max(0, lane.last_ns - lane.started_ns) // 10**9
    return min(int(lasted_s).bit_length(), 25)


UPSERT = (
    f"INSERT INTO lanes ({', '.join(_COLUMNS)}, tier, reach) VALUES ({', '.join('?' * (len(_COLUMNS) + 2))})"
    " ON CONFLICT (request, engine) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in (*_COLUMNS[2:], "tier", "reach"))
)
PRUNE = "DELETE FROM lanes WHERE (request, engine) IN (SELECT request, engine FROM requests WHERE last_ns < ?)"


def find(
    db: sqlite3.Connection, window: Window, *, live: Iterable[str], named: Sequence[tuple[str, str]] | None = None
) -> Lanes:
    """The lanes of a window, at most `window.limit` of them. `live` are the engines whose open requests go on; `named`,
    where it is known, the ids and engines of all requests that search and status can mean, at most `NAMED`."""
    deadline_s = time.monotonic() + BUDGET_S
    db.set_progress_handler(lambda: time.monotonic() > deadline_s, 20_000)
    try:
        tiers = partial(_tier, db, window, live=live) if named is None else _tiers_of(db, window, named, live=live)
        # Half of the places are kept for those without findings: what is usual must be seen beside what is wrong.
        guilty = _sample(tiers, GUILTY_TIER, room=max(1, window.limit // 2))
        others = _sample(tiers, 0, room=window.limit - len(guilty.rows))
    finally:
        db.set_progress_handler(None, 0)
    lanes = [_lane(found) for found in (*guilty.rows, *others.rows)]
    return Lanes(
        lanes=sorted(lanes, key=lambda lane: (lane.started_ns, lane.request)),
        known=sum(len(part.rows) * 2**part.lowest for part in (guilty, others)),
        is_sample=guilty.lowest + others.lowest > 0,
        has_all_findings=guilty.lowest == 0 and guilty.is_whole,
        is_whole=guilty.is_whole and others.is_whole,
    )


class Tiers(Protocol):
    """Gives the rows of a tier, at most so many."""

    def __call__(self, number: int, *, most: int) -> Iterable[Sequence[Any]]: ...


@dataclass(frozen=True, slots=True)
class _Sample:
    """Rows of all tiers from the `lowest` up: one of 2**lowest of all."""

    rows: list[Sequence[Any]]
    lowest: int
    is_whole: bool


def _sample(tiers: Tiers, base: int, *, room: int) -> _Sample:
    rows: list[Sequence[Any]] = []
    for lot in range(LOTS - 1, -1, -1):
        fresh: list[Sequence[Any]] = []
        try:
            fresh.extend(tiers(base + lot, most=room - len(rows) + 1))
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
            return _Sample([*rows, *fresh][:room], lot, is_whole=False)
        if len(rows) + len(fresh) > room:
            # A part of a tier would be no fair sample; it is shown only where there is nothing else.
            return _Sample(rows or fresh[:room], lot + 1 if rows else lot, is_whole=True)
        rows += fresh
    return _Sample(rows, 0, is_whole=True)


def marks(db: sqlite3.Connection, window: Window, lanes: Iterable[Lane], *, limit: int) -> list[dict[str, Any]]:
    """The findings of these lanes, and those of the window that concern no request."""
    guilty = {(lane.engine, lane.request) for lane in lanes if lane.findings}
    named = to_text(sorted({request for _, request in guilty}))
    of_requests = "SELECT body FROM findings WHERE request IN (SELECT value FROM json_each(?)) LIMIT ?"
    of_none = "SELECT body FROM findings WHERE last_ns BETWEEN ? AND ? AND request = '' LIMIT ?"
    bodies = [*db.execute(of_requests, (named, limit)), *db.execute(of_none, (window.from_ns, window.to_ns, limit))]
    found = [from_text(body) for (body,) in bodies]
    return [f for f in found if not f["request"] or (f["engine"], f["request"]) in guilty][:limit]


def _tiers_of(
    db: sqlite3.Connection, window: Window, named: Sequence[tuple[str, str]], *, live: Iterable[str]
) -> Tiers:
    """The tiers of the lanes that are named: each is looked up, however long the window is."""
    conditions, values = _filters(window)
    query = (
        f"SELECT tier, {', '.join(f'lanes.{name}' for name in _COLUMNS)} FROM json_each(?) AS n CROSS JOIN lanes"
        " ON lanes.request = n.value ->> 0 AND lanes.engine = n.value ->> 1 WHERE started_ns <= ?"
        f" AND (last_ns >= ? OR (reach = {OPEN_REACH} AND engine IN (SELECT value FROM json_each(?)))){conditions}"
    )
    held: dict[int, list[Sequence[Any]]] = {}
    for number, *row in db.execute(query, (to_text(named), window.to_ns, window.from_ns, to_text(list(live)), *values)):
        held.setdefault(number, []).append(row)
    return lambda number, *, most: held.get(number, [])[:most]


def _tier(
    db: sqlite3.Connection, window: Window, number: int, *, live: Iterable[str], most: int
) -> Iterator[Sequence[Any]]:
    conditions, values = _filters(window)
    columns = ", ".join(f"lanes.{name}" for name in _COLUMNS)
    # CROSS JOIN is SQLite's word for "in this order": a range of the index for each reach.
    ended = (
        f"SELECT {columns} FROM json_each(?) AS r CROSS JOIN lanes INDEXED BY lanes_by_time"
        " ON tier = ? AND reach = r.value ->> 0 AND started_ns BETWEEN ? - (r.value ->> 1) AND ?"
        f" WHERE last_ns >= ?{conditions} LIMIT ?"
    )
    from_ns, to_ns = window.from_ns, window.to_ns
    yield from db.execute(ended, (_REACHES, number, from_ns, to_ns, from_ns, *values, most))
    still_open = (
        f"SELECT {columns} FROM lanes INDEXED BY lanes_by_time WHERE tier = ? AND reach = ? AND started_ns <= ?"
        f" AND (last_ns >= ? OR engine IN (SELECT value FROM json_each(?))){conditions} LIMIT ?"
    )
    yield from db.execute(still_open, (number, OPEN_REACH, to_ns, from_ns, to_text(list(live)), *values, most))


def _filters(window: Window) -> tuple[str, list[Any]]:
    wanted = {"engine": window.engine, "connector": window.connector, "status": window.status}
    conditions = [f" AND lanes.{name} = ?" for name, value in wanted.items() if value]
    values: list[Any] = [value for value in wanted.values() if value]
    if window.search:
        conditions.append(" AND (instr(lanes.request, ?) OR instr(lanes.external, ?))")
        values += [window.search] * 2
    return "".join(conditions), values


def _lane(found: Sequence[Any]) -> Lane:
    fields = dict(zip(_COLUMNS, found, strict=True))
    for name in ("changes", "transfers"):
        fields[name] = tuple(from_text(fields[name]))
    return Lane(**{**fields, "complete": bool(fields["complete"])})
