"""Requests of SQLite's store by any part of an id, through an index of the trigrams of all ids.

FTS5 keeps for each three characters the numbers of the requests in whose ids they are, and no more (`detail=none`, no
text). Requests with all trigrams of a search are few, and their ids then tell whether they stand there in a row. Numbers
count up as requests come, so the latest are found first, and nobody has to read the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SCHEMA = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS request_ids USING fts5"
    " (ids, content='', tokenize='trigram case_sensitive 1', detail=none, columnsize=0)",
    "CREATE VIRTUAL TABLE IF NOT EXISTS request_grams USING fts5vocab(request_ids, row)",
)
SLACK = 5_000
"""Requests are numbered as they come, and shown by when they began. So many that came later may have begun earlier; what
recorders hold back is far less."""
_GRAM = 3
_END = "char(10, 10)"
_PART = "(instr(request, ?) OR instr(external, ?))"

Query = Callable[..., list[Any]]
"""Takes a SELECT, its conditions, their values and what follows them; returns rows."""


def _ids(row: str) -> str:
    """vLLM's id mostly holds the external one, which then need not be entered twice. With what follows it, each of its
    characters begins a trigram."""
    one, both = f"{row}.request || {_END}", f"{row}.request || char(10) || {row}.external || {_END}"
    return f"CASE WHEN instr({row}.request, {row}.external) THEN {one} ELSE {both} END"


def entering(row: str) -> str:
    """The statement of a trigger that enters a row's ids."""
    return f"INSERT INTO request_ids (rowid, ids) VALUES ({row}.number, {_ids(row)});"


def leaving(row: str) -> str:
    """The one that takes them out; the index holds no text, and must be told what was entered."""
    return f"INSERT INTO request_ids (request_ids, rowid, ids) VALUES ('delete', {row}.number, {_ids(row)});"


ENTER_ALL = f"INSERT INTO request_ids (rowid, ids) SELECT number, {_ids('r')} FROM requests r ORDER BY number"


def condition(search: str) -> tuple[list[str], list[Any]]:
    """What holds for requests that a search means, and its values."""
    return ([f"({_PART} OR trace_id = ?)"], [search] * 3) if search else ([], [])


def traced(trace_id: str) -> str:
    """What holds for the requests of a trace; its spans name them."""
    its_spans = "SELECT r.number FROM spans CROSS JOIN requests r USING (request, engine)"
    return f"number IN ({its_spans} WHERE spans.trace_id = {trace_id} AND r.trace_id = spans.trace_id)"


def numbers(query: Query, search: str, *, where: Mapping[str, Any], until_ns: int, limit: int) -> list[int]:
    """The numbers of requests with `search` in one of their ids or as their trace id, that began before `until_ns` and for
    which the conditions of `where` hold, with the value of each.

    The latest `limit` of them are among these, though not all of these are.
    """
    conditions, values = ["started_ns < ?", *where], [until_ns, *where.values()]
    by_trace = query("SELECT number FROM requests", [traced("?"), *conditions], [search, *values])
    found = {number for (number,) in by_trace}
    if len(search) < _GRAM:
        # So little is in most ids, and found among the latest at once.
        latest = "SELECT number FROM requests WHERE started_ns < ? ORDER BY started_ns DESC LIMIT ?"
        near = query(
            "SELECT number FROM requests NOT INDEXED",
            [f"number IN ({latest})", _PART, *conditions],
            [until_ns, SLACK, search, search, *values],
            f"ORDER BY started_ns DESC LIMIT {int(limit)}",
        )
        if len(near) == limit:
            return sorted(found | {number for (number,) in near})
    return sorted(found.union(by_part(query, search, where=where, until_ns=until_ns, limit=limit + SLACK)))


def by_part(query: Query, search: str, *, where: Mapping[str, Any], until_ns: int, limit: int) -> list[int]:
    """Those with `search` in one of their ids alone: the last `limit` that came."""
    if not (grams := _grams(query, search)):
        return []
    newest = "SELECT number FROM requests WHERE started_ns < ? ORDER BY started_ns DESC LIMIT ?"
    found = query(
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
    return [number for (number,) in found]


def _grams(query: Query, search: str) -> str:
    """The trigrams that an id with this part must have, as FTS5 takes them; empty where no id has them."""
    if len(search) >= _GRAM:
        every = {search[at : at + _GRAM] for at in range(len(search) - _GRAM + 1)}
        # For FTS5 a text ends with a zero.
        return " AND ".join(_quoted(gram) for gram in sorted(every) if "\0" not in gram)
    # Of a shorter part, one of those that begin with it.
    begun = query("SELECT term FROM request_grams", ["term >= ?", "term < ?"], [search, search + chr(0x10FFFF)])
    return " OR ".join(_quoted(gram) for (gram,) in begun)


def _quoted(gram: str) -> str:
    return '"' + gram.replace('"', '""') + '"'
