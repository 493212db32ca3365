"""Finds requests by any part of an id, through an index of the trigrams of all ids.

For each sequence of three characters, FTS5 stores the numbers of the requests whose ids contain it, and nothing else
(`detail=none`, no text). Few requests have all trigrams of a search, and only their ids are compared with it. Numbers grow
as requests arrive, so the latest are found first and the rest need not be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrail.tracer.store.sqlite.database import Query

SCHEMA = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS request_ids USING fts5"
    " (ids, content='', tokenize='trigram case_sensitive 1', detail=none, columnsize=0)",
    "CREATE VIRTUAL TABLE IF NOT EXISTS request_grams USING fts5vocab(request_ids, row)",
)
SLACK = 5_000
"""Requests are numbered as they arrive, but listed by their start. A request may have started before this many others that
arrived earlier; what recorders hold back is far less."""
_GRAM = 3
_END = "char(10, 10)"
_PART = "(instr(request, ?) OR instr(external, ?))"
PART_OR_TRACE = f"({_PART} OR trace_id = ?)"
"""The condition that a search puts on a request. It takes the text three times."""


def _ids(row: str) -> str:
    """The text to index for a row. vLLM's id usually contains the external id, which then need not be added. The end
    marker makes every character of an id the first of a trigram."""
    one, both = f"{row}.request || {_END}", f"{row}.request || char(10) || {row}.external || {_END}"
    return f"CASE WHEN instr({row}.request, {row}.external) THEN {one} ELSE {both} END"


def insert_statement(row: str) -> str:
    """The statement with which a trigger adds a row's ids."""
    return f"INSERT INTO request_ids (rowid, ids) VALUES ({row}.number, {_ids(row)});"


def delete_statement(row: str) -> str:
    """The statement with which a trigger removes them. The index holds no text, so it needs the text that was added."""
    return f"INSERT INTO request_ids (request_ids, rowid, ids) VALUES ('delete', {row}.number, {_ids(row)});"


INSERT_ALL = f"INSERT INTO request_ids (rowid, ids) SELECT number, {_ids('r')} FROM requests r ORDER BY number"


def in_trace(trace_id: str) -> str:
    """The condition that a request belongs to a trace, whose spans name it."""
    its_spans = "SELECT r.number FROM spans CROSS JOIN requests r USING (request, engine)"
    return f"number IN ({its_spans} WHERE spans.trace_id = {trace_id} AND r.trace_id = spans.trace_id)"


def search_all(query: Query, search: str, *, where: Mapping[str, Any], until_ns: int, limit: int) -> list[int]:
    """Numbers of requests that have `search` in one of their ids or as their trace id, started before `until_ns`, and meet
    the conditions of `where`, each with its value.

    The latest `limit` of them are among the result, which need not be complete beyond these.
    """
    conditions, values = ["started_ns < ?", *where], [until_ns, *where.values()]
    by_trace = query("SELECT number FROM requests", [in_trace("?"), *conditions], [search, *values])
    numbers = {number for (number,) in by_trace}
    if len(search) < _GRAM:
        # Most ids contain so short a text, so the latest requests usually suffice.
        latest = "SELECT number FROM requests WHERE started_ns < ? ORDER BY started_ns DESC LIMIT ?"
        recent = query(
            "SELECT number FROM requests NOT INDEXED",
            [f"number IN ({latest})", _PART, *conditions],
            [until_ns, SLACK, search, search, *values],
            f"ORDER BY started_ns DESC LIMIT {int(limit)}",
        )
        if len(recent) == limit:
            return sorted(numbers | {number for (number,) in recent})
    return sorted(numbers.union(search_ids(query, search, where=where, until_ns=until_ns, limit=limit + SLACK)))


def search_ids(query: Query, search: str, *, where: Mapping[str, Any], until_ns: int, limit: int) -> list[int]:
    """Numbers of the last `limit` requests to arrive that have `search` in one of their ids, and meet the conditions."""
    if not (grams := _grams(query, search)):
        return []
    newest = "SELECT number FROM requests WHERE started_ns < ? ORDER BY started_ns DESC LIMIT ?"
    rows = query(
        "SELECT number FROM request_ids CROSS JOIN requests NOT INDEXED ON number = request_ids.rowid",
        [
            "request_ids MATCH ?",
            f"request_ids.rowid <= (SELECT max(number) FROM ({newest}))",
            _PART,
            "started_ns < ?",
            *where,
        ],
        [grams, until_ns, SLACK, search, search, until_ns, *where.values()],
        f"ORDER BY request_ids.rowid DESC LIMIT {int(limit)}",
    )
    return [number for (number,) in rows]


def _grams(query: Query, search: str) -> str:
    """The trigrams that an id with this part must have, as an FTS5 query; empty if no id has them."""
    if len(search) >= _GRAM:
        grams = {search[at : at + _GRAM] for at in range(len(search) - _GRAM + 1)}
        # For FTS5, a zero ends the text.
        return " AND ".join(_quoted(gram) for gram in sorted(grams) if "\0" not in gram)
    # A shorter part begins one of the trigrams that the index has.
    rows = query("SELECT term FROM request_grams", ["term >= ?", "term < ?"], [search, search + chr(0x10FFFF)])
    return " OR ".join(_quoted(gram) for (gram,) in rows)


def _quoted(gram: str) -> str:
    return '"' + gram.replace('"', '""') + '"'
