"""Finds requests by any part of an id, through an index of the trigrams of all ids.

For each sequence of three characters, FTS5 stores the numbers of the requests with ids that contain it, and nothing else
(`detail=none`, no text). Few requests have all trigrams of a search, and only their ids are compared with it. Numbers grow
as requests arrive, so the latest are found first and the rest need not be read.

The index grows by many requests at a time, which is cheaper. Those that are not in it yet are looked through.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from kvtrail.tracer.store.queries import to_text
from kvtrail.tracer.store.sqlite import traces
from kvtrail.tracer.store.sqlite.database import Query

SCHEMA = (
    "CREATE VIRTUAL TABLE request_ids USING fts5"
    " (ids, content='', tokenize='trigram case_sensitive 1', detail=none, columnsize=0)",
    "CREATE VIRTUAL TABLE request_grams USING fts5vocab(request_ids, row)",
    # By itself, FTS5 merges parts of its index within whatever transaction comes, now and then for seconds.
    "INSERT INTO request_ids (request_ids, rank) VALUES ('automerge', 0)",
    "INSERT INTO request_ids (request_ids, rank) VALUES ('crisismerge', 1000)",
    # The last request that is in the index.
    "CREATE TABLE request_ids_end (number INTEGER NOT NULL)",
    "INSERT INTO request_ids_end SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM request_ids_end)",
)
INDEXED_AT_ONCE = 2_000
"""Requests that are added to the index together."""
_MERGED_PAGES = 50
"""Pages of the index that are merged at a time."""
_END = "(SELECT number FROM request_ids_end)"
SLACK = 5_000
"""Requests are numbered as they arrive, but listed by their start. A request may have started before this many others that
arrived earlier; what recorders hold back is far less."""
_GRAM = 3
_MARK = "char(10, 10)"
_PART = "(instr(request, ?) OR instr(external, ?))"
PART_OR_TRACE = f"({_PART} OR trace_id = ?)"
"""The condition that a search puts on a request. It takes the text three times."""


def _ids(row: str) -> str:
    """The text to index for a row. vLLM's id usually contains the external id, which then need not be added. The end
    marker makes every character of an id the first of a trigram."""
    one, both = f"{row}.request || {_MARK}", f"{row}.request || char(10) || {row}.external || {_MARK}"
    return f"CASE WHEN instr({row}.request, {row}.external) THEN {one} ELSE {both} END"


IS_INDEXED = f"old.number <= {_END}"
"""The condition that a request with a changed row is in the index."""
INSERT_NEW = f"INSERT INTO request_ids (rowid, ids) VALUES (new.number, {_ids('new')});"
"""What a trigger adds to the index when ids have changed."""
DELETE_OLD = f"INSERT INTO request_ids (request_ids, rowid, ids) VALUES ('delete', old.number, {_ids('old')});"
"""What a trigger removes from it. The index holds no text, so it needs the text that was added."""


def index(db: sqlite3.Connection, *, some: bool) -> bool:
    """Add the next requests to the index, within the open transaction, if there are enough to be worth the while, or with
    `some` any. Returns whether there were."""
    following = f"SELECT number FROM requests WHERE number > {_END} ORDER BY number LIMIT {INDEXED_AT_ONCE}"
    ((last, count),) = db.execute(f"SELECT max(number), count(*) FROM ({following})")
    if count < INDEXED_AT_ONCE and not (count and some):
        return False
    db.execute(
        "INSERT INTO request_ids (rowid, ids)"
        f" SELECT number, {_ids('r')} FROM requests r WHERE number > {_END} AND number <= ? ORDER BY number",
        (last,),
    )
    db.execute("UPDATE request_ids_end SET number = ?", (last,))
    return True


def merge(db: sqlite3.Connection) -> bool:
    """Merge some parts of the index, within the open transaction; returns whether there was anything to merge."""
    before = db.total_changes
    db.execute("INSERT INTO request_ids (request_ids, rank) VALUES ('merge', ?)", (_MERGED_PAGES,))
    # https://sqlite.org/fts5.html#the_merge_command: fewer than two changes mean that nothing was done.
    return db.total_changes - before >= 2


def shorten(db: sqlite3.Connection) -> None:
    """Note, within the open transaction, that requests have left: the numbers of the last may be given again."""
    db.execute("UPDATE request_ids_end SET number = min(number, (SELECT coalesce(max(number), 0) FROM requests))")


def search_all(query: Query, search: str, *, where: Mapping[str, Any], until_ns: int, limit: int) -> list[int]:
    """Numbers of requests that have `search` in one of their ids or as their trace id, started before `until_ns`, and meet
    the conditions of `where`, each with its value.

    The latest `limit` of them are among the result, which need not be complete beyond these.
    """
    conditions, values = ["started_ns < ?", *where], [until_ns, *where.values()]
    of_trace = to_text(traces.requests_in(query, search))
    # These are few; without NOT INDEXED, all requests of a verdict may be looked through for them.
    by_trace = query(
        "SELECT number FROM requests NOT INDEXED",
        ["number IN (SELECT value FROM json_each(?))", *conditions],
        [of_trace, *values],
    )
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
    fresh = query(
        "SELECT number FROM requests NOT INDEXED",
        [f"number > {_END}", _PART, "started_ns < ?", *where],
        [search, search, until_ns, *where.values()],
        f"ORDER BY number DESC LIMIT {int(limit)}",
    )
    if len(fresh) == limit or not (grams := _grams(query, search)):
        return [number for (number,) in fresh]
    newest = "SELECT number FROM requests WHERE started_ns < ? ORDER BY started_ns DESC LIMIT ?"
    rows = query(
        "SELECT number FROM request_ids CROSS JOIN requests NOT INDEXED ON number = request_ids.rowid",
        [
            "request_ids MATCH ?",
            f"request_ids.rowid <= {_END}",
            f"request_ids.rowid <= (SELECT max(number) FROM ({newest}))",
            _PART,
            "started_ns < ?",
            *where,
        ],
        [grams, until_ns, SLACK, search, search, until_ns, *where.values()],
        f"ORDER BY request_ids.rowid DESC LIMIT {int(limit) - len(fresh)}",
    )
    return [number for (number,) in (*fresh, *rows)]


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
