"""Spans in SQLite, and the resources that they share; also what the resources reveal about engines."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kvtrail.tracer.model import engines, semconv
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.spans import Span
from kvtrail.tracer.store.sqlite.database import Database, from_text, to_text, whole_sum

GEN_AI_REQUEST_ID = semconv.CALLERS_ID.key
"""The attribute with which vLLM's `llm_request` names its request, by the external id, even in another trace."""
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS resources (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS resource_uses (resource INTEGER PRIMARY KEY, last_ns INTEGER NOT NULL)",
    """CREATE TABLE IF NOT EXISTS spans (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    span_id TEXT NOT NULL, trace_id TEXT NOT NULL, parent_id TEXT NOT NULL,
    name TEXT NOT NULL, scope TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    engine TEXT, request TEXT, named TEXT, error TEXT, resource INTEGER NOT NULL,
    attributes TEXT NOT NULL, events TEXT NOT NULL,
    UNIQUE (span_id, trace_id)
)""",
    "CREATE INDEX IF NOT EXISTS spans_by_request ON spans (request, engine)",
    "CREATE INDEX IF NOT EXISTS spans_by_name_of_request ON spans (named) WHERE named IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS spans_by_trace ON spans (trace_id)",
    "CREATE INDEX IF NOT EXISTS spans_by_time ON spans (end_ns)",
)
_FIELDS = ("span_id", "trace_id", "parent_id", "name", "scope", "start_ns", "end_ns", "error")
COLUMNS = (
    f"{', '.join(_FIELDS)}, attributes, events, coalesce((SELECT body FROM resources WHERE id = resource), '{{}}')"
)
_NOTE_USE_NS = 60 * 10**9
"""How often it is noted that a resource is in use."""
_SUMMED = {"returned": semconv.RETURNED.key, "count_tokens": semconv.COUNT.key, "bytes": semconv.BYTES.key}


class Resources:
    """The numbers of the resources that are stored, and when they were used last."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._used_ns: dict[int, int] = {}

    def clear(self) -> None:
        """Forget what is known of them: a transaction was rolled back, or some were dropped."""
        self._numbers.clear()
        self._used_ns.clear()

    def number(self, db: sqlite3.Connection, resource: Mapping[str, Any]) -> int:
        """The number of a resource that is in use, within the open transaction."""
        body, now_ns = to_text(resource), time.time_ns()
        number = self._numbers.get(body)
        if number is None:
            db.execute("INSERT OR IGNORE INTO resources (body) VALUES (?)", (body,))
            (number,) = db.execute("SELECT id FROM resources WHERE body = ?", (body,)).fetchone()
            self._numbers[body] = number
        if now_ns - self._used_ns.get(number, 0) > _NOTE_USE_NS:
            db.execute("INSERT OR REPLACE INTO resource_uses (resource, last_ns) VALUES (?, ?)", (number, now_ns))
            self._used_ns[number] = now_ns
        return number


def note_uses(db: sqlite3.Connection) -> None:
    """Take the resources of an older store, which did not note it, for being in use."""
    db.execute("INSERT OR IGNORE INTO resource_uses SELECT id, ? FROM resources", (time.time_ns(),))


def put(db: sqlite3.Connection, spans: Iterable[tuple[Span, Event | None]], resources: Resources) -> None:
    """Store spans within the open transaction; those that are stored already stay as they are."""
    numbers: dict[int, int] = {}  # by identity: spans of a batch share their resource objects

    def row(span: Span, event: Event | None) -> tuple[Any, ...]:
        named = span.attributes.get(GEN_AI_REQUEST_ID)
        whose: tuple[str | None, ...] = (None, None, named if isinstance(named, str) else None)
        if event is not None:
            whose = (event.engine, event.request, None)
        number = numbers.get(id(span.resource))
        if number is None:
            number = numbers[id(span.resource)] = resources.number(db, span.resource)
        return (
            span.span_id, span.trace_id, span.parent_id, span.name, span.scope, span.start_ns, span.end_ns, *whose,
            span.error, number, to_text(span.attributes), to_text(span.events),
        )  # fmt: skip

    db.executemany(
        "INSERT OR IGNORE INTO spans (span_id, trace_id, parent_id, name, scope, start_ns, end_ns, engine, request,"
        " named, error, resource, attributes, events) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (row(span, event) for span, event in spans),
    )


def prune(db: sqlite3.Connection, *, before_ns: int) -> int:
    """Drop the spans that ended before, unless their request lasted longer; returns how many. Resources are dropped when they
    have been unused for twice as long: by then, none of their spans is left."""
    unused_ns = max(0, 2 * before_ns - time.time_ns())
    db.execute("DELETE FROM resources WHERE id IN (SELECT resource FROM resource_uses WHERE last_ns < ?)", (unused_ns,))
    db.execute("DELETE FROM resource_uses WHERE last_ns < ?", (unused_ns,))
    return db.execute(
        "DELETE FROM spans WHERE end_ns < ? AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.request = spans.request"
        " AND r.engine = spans.engine AND r.last_ns >= ?)",
        (before_ns, before_ns),
    ).rowcount


def drop(db: sqlite3.Connection, requests: Iterable[tuple[str, str]]) -> None:
    """Drop the spans of requests, by engine and id, within the open transaction."""
    db.executemany("DELETE FROM spans WHERE engine = ? AND request = ?", requests)


class SpanReader(Database):
    """The part of `Reader` that is about spans and engines."""

    def spans_of(self, account: dict[str, Any], *, limit: int = 20_000) -> list[Span]:
        rows = self.query(
            f"SELECT {COLUMNS} FROM spans",
            ["(request = ? AND engine = ?) OR (trace_id = ? AND request IS NULL) OR named = ?"],
            [account["request"], account["engine"], account["trace_id"], account["external"]],
            f"ORDER BY end_ns DESC, number DESC LIMIT {int(limit)}",
        )
        return [span_of(row) for row in reversed(rows)]

    def tail(self, *, after: int, limit: int = 500) -> list[tuple[int, Span]]:
        rows = self.query(
            f"SELECT number, {COLUMNS} FROM spans", ["number > ?"], [after], f"ORDER BY number LIMIT {int(limit)}"
        )
        return [(number, span_of(rest)) for number, *rest in rows]

    def last_number(self) -> int:
        return int(self.query("SELECT coalesce(max(number), 0) FROM spans")[0][0])

    def activity(self, *, since_ns: int) -> dict[str, dict[str, int]]:
        sums = ", ".join(whole_sum(f"attributes ->> '$.\"{key}\"'") for key in _SUMMED.values())
        rows = self.query(
            f"SELECT name, count(*), {sums} FROM spans",
            ["end_ns >= ?", "scope = ?", "engine IS NOT NULL"],  # what is malformed has no engine
            [since_ns, semconv.SCOPE],
            "GROUP BY name",
        )
        return {name: dict(zip(("count", *_SUMMED), counts, strict=True)) for name, *counts in rows}

    def names(self) -> dict[str, str]:
        return engines.names(self._descriptions())

    def engines(self) -> dict[str, dict[str, Any]]:
        descriptions = self._descriptions()
        names = engines.names(descriptions)
        known = {engine: {"name": names[engine], **each, "open": 0} for engine, each in descriptions.items()}
        open_requests = self.query(
            "SELECT engine, count(*) FROM requests INDEXED BY requests_open",
            ["ended_ns IS NULL"],
            (),
            "GROUP BY engine",
        )
        for engine, count in open_requests:
            known.setdefault(engine, {"name": engine, **engines.described({}), "open": 0})["open"] = count
        return known

    def _descriptions(self) -> dict[str, dict[str, str]]:
        bodies = self.query("SELECT body FROM resources ORDER BY id")
        return engines.descriptions(_describing(body) for (body,) in bodies)


@lru_cache(maxsize=8192)
def _describing(body: str) -> dict[str, Any]:
    """What a stored resource says of its engine. The pages ask for it again and again, and it never changes."""
    resource = from_text(body)
    return {key: resource[key] for key in (semconv.ENGINE_ID.key, *engines.DESCRIPTION.values()) if key in resource}


def span_of(row: Sequence[Any]) -> Span:
    """The span in a row of `COLUMNS`."""
    *fields, attributes, events, resource = row
    return Span(
        **dict(zip(_FIELDS, fields, strict=True)),
        attributes=from_text(attributes),
        events=from_text(events),
        resource=from_text(resource),
    )
