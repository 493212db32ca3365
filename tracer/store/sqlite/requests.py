"""Requests in SQLite: their table and its indexes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.ingest import protobuf
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.lanes import Lane
from kvtrail.tracer.store import requests
from kvtrail.tracer.store.queries import to_text
from kvtrail.tracer.store.request_rows import COLUMNS, RequestRow, tier_of
from kvtrail.tracer.store.sqlite import bodies, log, measures
from kvtrail.tracer.store.sqlite.database import Database

SCHEMA = (
    """CREATE TABLE requests (
    number INTEGER PRIMARY KEY,
    request TEXT NOT NULL, engine TEXT NOT NULL, external TEXT NOT NULL, trace_id TEXT NOT NULL, connector TEXT NOT NULL,
    status TEXT NOT NULL, outcome TEXT, verdict TEXT NOT NULL, findings INTEGER NOT NULL, complete INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER,
    lookups INTEGER NOT NULL, longest_match INTEGER NOT NULL, loaded INTEGER NOT NULL,
    stored INTEGER NOT NULL, epoch INTEGER NOT NULL, waited_ns INTEGER NOT NULL, recomputed INTEGER NOT NULL,
    loads INTEGER NOT NULL, tier INTEGER, reach INTEGER, changes TEXT NOT NULL, transfers TEXT NOT NULL,
    after_span INTEGER NOT NULL, body BLOB NOT NULL
)""",
    "CREATE UNIQUE INDEX requests_by_id ON requests (request, engine)",
    "CREATE INDEX requests_by_external ON requests (external)",
    "CREATE INDEX requests_by_start ON requests (started_ns)",
    "CREATE INDEX requests_by_status ON requests (status, started_ns)",
    "CREATE INDEX requests_by_verdict ON requests (verdict, started_ns)",
    "CREATE INDEX requests_open ON requests (engine) WHERE ended_ns IS NULL",
    "CREATE INDEX requests_by_lane ON requests (tier, reach, started_ns, last_ns, ended_ns) WHERE tier IS NOT NULL",
)
_STABLE = ("request", "engine", "external", "trace_id", "started_ns")
"""Columns that hardly ever change. An update that does not set them leaves their indexes alone."""
_PUT = (*COLUMNS, "tier", "reach", "changes", "transfers", "body")
_UPDATE = (
    f"UPDATE requests SET {', '.join(f'{name} = ?{at}' for at, name in enumerate(_PUT, 1) if name not in _STABLE)}"
    f" WHERE {' AND '.join(f'{name} = ?{_PUT.index(name) + 1}' for name in _STABLE)}"
)
_UPSERT = (
    f"INSERT INTO requests ({', '.join(_PUT)}, after_span)"
    f" VALUES ({', '.join('?' * len(_PUT))}, (SELECT settled FROM log_end))"
    " ON CONFLICT (request, engine) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in _PUT[2:])
)
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_NO_LANE = (None, None, "[]", "[]")
OPEN_REACH = 63
"""The reach of open requests, which extend to the present."""
LONGEST_REACH = 25
"""The largest reach of ended requests: 2**25 seconds are more than a year."""


def put(db: sqlite3.Connection, rows: Sequence[RequestRow]) -> None:
    """Store new and changed requests and their measures, within the open transaction."""
    compress = bodies.packer().compress
    for row in rows:
        lane = _NO_LANE if row.lane is None else _lane_columns(row.lane)
        values = (*map(row.columns.__getitem__, COLUMNS), *lane, compress(row.body))
        if not db.execute(_UPDATE, values).rowcount:
            db.execute(_UPSERT, values)
    measures.put(db, rows)


def _lane_columns(lane: Lane) -> tuple[Any, ...]:
    """Its tier, reach, changes and transfers."""
    reach = OPEN_REACH
    if lane.ended_ns is not None:
        lasted_s = max(0, lane.last_ns - lane.started_ns) // 10**9
        reach = min(int(lasted_s).bit_length(), LONGEST_REACH)
    return tier_of(lane), reach, to_text(lane.changes), to_text(lane.transfers)


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the requests that began since then, within the open transaction."""
    db.execute("DELETE FROM requests WHERE started_ns >= ?", (since_ns,))


def prune(db: sqlite3.Connection, *, after: int, limit: int, before_ns: int) -> int | None:
    """Examine this many requests after number `after`, and drop those with the last event before; returns the last examined
    number, or None if no older requests follow."""
    rows = db.execute(
        "SELECT number, started_ns, last_ns FROM requests WHERE number > ? ORDER BY number LIMIT ?",
        (after, limit),
    ).fetchall()
    old = [(number,) for number, _, last_ns in rows if last_ns < before_ns]
    db.executemany("DELETE FROM requests WHERE number = ?", old)
    # Numbers almost always grow with time.
    return rows[-1][0] if any(started_ns < before_ns for _, started_ns, _ in rows) else None


class RequestReader(measures.MeasureReader, requests.RequestReader, Database):
    """The part of `Reader` for requests and their measures."""

    find, stored = "instr", "engine, status, outcome, body"

    def unpacked(self, body: Any) -> bytes:
        return bodies.unpacked(body)

    def of_trace(self, trace_id: str) -> dict[str, Any]:
        return {"number IN {numbers:Array(Int64)}": self._numbers_in(trace_id)}

    def _numbers_in(self, trace_id: str) -> list[int]:
        """The numbers of the requests in this trace; none if it is not a trace id."""
        if not _TRACE_ID.fullmatch(trace_id):
            return []
        decoder = ProtobufDecoder()
        found: set[tuple[str, str]] = set()
        for payload in log.payloads_with(self.query, [log.trace_key(trace_id)]):
            events = decoder.decoded(protobuf.cut(payload, [bytes.fromhex(trace_id)])).events
            found.update((event.engine, event.request) for event in events if event.request is not None)
        rows = self.query(
            "SELECT number FROM json_each(?) AS r CROSS JOIN requests"
            " ON request = r.value ->> 1 AND engine = r.value ->> 0 WHERE trace_id = ?",
            [to_text(sorted(found)), trace_id],
        )
        return [number for (number,) in rows]
