"""The log: spans as they were received, and an index of the spans of each request.

A batch's spans are appended as one chunk: their OTLP request, compressed. A fresh chunk carries its own list of the keys
by which its spans are looked up. Periodically the fresh chunks are folded: joined into larger ones, which
compress better, with their keys in a table. OTLP requests are joined by concatenation.

Appending takes 1 us per span, compared with 20 us for a row per span; a span takes 30 bytes, a row took 1,000.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import Any

import zstandard

from kvtrail.tracer.store import Chunk, damage
from kvtrail.tracer.store.queries import to_text
from kvtrail.tracer.store.sqlite.database import Query

SCHEMA = (
    # `number` is the number of the first span, by arrival; `keys` are the concatenated keys of a fresh chunk.
    """CREATE TABLE chunks (
    number INTEGER PRIMARY KEY, spans INTEGER NOT NULL, last_ns INTEGER NOT NULL, keys BLOB, body BLOB NOT NULL
)""",
    "CREATE INDEX chunks_fresh ON chunks (number) WHERE keys IS NOT NULL",
    # Partitioned into stretches of the log that fit into a cache: otherwise inserts would be spread over the whole table.
    """CREATE TABLE places (
    stretch INTEGER NOT NULL, key INTEGER NOT NULL, chunk INTEGER NOT NULL, PRIMARY KEY (stretch, key, chunk)
) WITHOUT ROWID""",
    # The numbers of the last span, even if its chunk was dropped; of the last span that the accounts include;
    # and of the last judged span, if later ones are stored.
    "CREATE TABLE log_end (number INTEGER NOT NULL, settled INTEGER NOT NULL, judged INTEGER)",
    "INSERT INTO log_end VALUES (0, 0, NULL)",
)
FOLDED_SPANS = 2048
"""Maximum number of spans in a folded chunk. A page decompresses the whole chunk to show a request."""
_STRETCH_BITS = 18
"""A stretch of the log has 2**18 spans."""
_KEY_BYTES = 8
_COMPRESSION = 3
_FRESH = "FROM chunks INDEXED BY chunks_fresh WHERE keys IS NOT NULL"


def request_key(engine: str, request: str) -> bytes:
    """The key by which the spans of a request are found."""
    return _key("r", engine, request)


def trace_key(trace_id: str) -> bytes:
    """The key by which the spans of a trace are found."""
    return _key("t", trace_id)


def name_key(external: str) -> bytes:
    """The key by which foreign spans that name an external id are found."""
    return _key("n", external)


def _key(*parts: str) -> bytes:
    # If two ids have the same key, only one additional chunk is searched.
    return blake2b("\0".join(parts).encode(errors="replace"), digest_size=_KEY_BYTES).digest()


def stretch(number: int) -> int:
    """The stretch of a span."""
    return number >> _STRETCH_BITS


class Log:
    """The writing side, on the connection of the only writer, within its transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._compress = zstandard.ZstdCompressor(level=_COMPRESSION, write_checksum=True).compress

    def append(self, chunk: Chunk) -> None:
        """Append a chunk, which has at least one span: it would have no number otherwise."""
        keys = {request_key(*request) for request in chunk.requests}
        keys.update(map(trace_key, chunk.traces))
        keys.update(map(name_key, chunk.named))
        ((last,),) = self._db.execute(
            "UPDATE log_end SET number = number + ? RETURNING number", (chunk.spans,)
        ).fetchall()
        self._put(last - chunk.spans + 1, chunk.spans, chunk.last_ns, b"".join(keys), chunk.payload)

    def settle(self, number: int) -> None:
        """Note that the accounts include all spans up to this number."""
        self._db.execute("UPDATE log_end SET settled = ?", (number,))

    def judge(self, number: int | None) -> None:
        """Note the number of the last span that was judged; None for the last one."""
        self._db.execute("UPDATE log_end SET judged = ?", (number,))

    def fresh(self) -> int:
        """The number of spans in fresh chunks."""
        ((spans,),) = self._db.execute(f"SELECT coalesce(sum(spans), 0) {_FRESH}").fetchall()
        return int(spans)

    def fold(self) -> None:
        """Join the oldest of the fresh chunks into one."""
        chunks: list[Any] = []
        spans = 0
        for row in self._db.execute(f"SELECT number, spans, last_ns, keys, body {_FRESH} ORDER BY number"):
            if chunks and spans + row[1] > FOLDED_SPANS:
                break
            chunks.append(row)
            spans += row[1]
        numbers, _, last, keys, bodies = zip(*chunks, strict=True)
        first = numbers[0]
        if len(chunks) == 1:
            self._db.execute("UPDATE chunks SET keys = NULL WHERE number = ?", (first,))
        else:
            self._db.execute("DELETE FROM chunks WHERE number BETWEEN ? AND ?", (first, numbers[-1]))
            self._put(first, spans, max(last), None, b"".join(map(_decompressed, numbers, bodies)))
        every = b"".join(keys)
        places = {_number(every[at : at + _KEY_BYTES]) for at in range(0, len(every), _KEY_BYTES)}
        self._db.executemany(
            "INSERT OR IGNORE INTO places (stretch, key, chunk) VALUES (?, ?, ?)",
            ((stretch(first), key, first) for key in sorted(places)),
        )

    def oldest_ns(self, chunks: int) -> int:
        """The end of the last span in this many oldest chunks; 0 without any."""
        query = "SELECT coalesce(max(last_ns), 0) FROM (SELECT last_ns FROM chunks ORDER BY number LIMIT ?)"
        ((last_ns,),) = self._db.execute(query, (chunks,)).fetchall()
        return int(last_ns)

    def drop_oldest(self, chunks: int, *, before_ns: int) -> int:
        """Examine this many of the oldest chunks, and drop the ones that ended before this time; returns the number of
        dropped spans."""
        oldest = "number IN (SELECT number FROM chunks ORDER BY number LIMIT ?)"
        delete = f"DELETE FROM chunks WHERE {oldest} AND last_ns < ? RETURNING spans"
        dropped = self._db.execute(delete, (chunks, before_ns)).fetchall()
        if dropped:
            # The index entries of a stretch are deleted with its last chunk. Until then, some refer to deleted chunks.
            end = "coalesce((SELECT min(number) FROM chunks), (SELECT number + 1 FROM log_end))"
            self._db.execute(f"DELETE FROM places WHERE stretch < {end} >> {_STRETCH_BITS}")
        return sum(spans for (spans,) in dropped)

    def _put(self, number: int, spans: int, last_ns: int, keys: bytes | None, payload: bytes) -> None:
        self._db.execute(
            "INSERT INTO chunks (number, spans, last_ns, keys, body) VALUES (?, ?, ?, ?, ?)",
            (number, spans, last_ns, keys, self._compress(payload)),
        )


def payloads_with(query: Query, keys: Collection[bytes]) -> Iterator[bytes]:
    """The chunks that may contain spans with any of these keys, the latest first, in the form of `payload_at`."""
    return (payload_at(query, number) for number in sorted(places_of(query, keys), reverse=True))


def places_of(query: Query, keys: Collection[bytes], *, from_stretch: int = 0) -> dict[int, set[bytes] | None]:
    """The chunks that may contain spans with any of these keys, by number, and these keys; None if it may contain any of
    them."""
    # Each subquery reads one end of the index; a single query for both reads the whole table.
    ((first, last),) = query("SELECT (SELECT min(number) FROM chunks), (SELECT max(number) FROM chunks)")
    stretches = range(max(from_stretch, stretch(first or 0)), stretch(last or 0) + 2)
    wanted = to_text([*map(_number, keys)])
    # One statement: between two statements a chunk might be folded, and neither would find it.
    rows = query(
        "SELECT places.chunk, places.key FROM json_each(?) AS s CROSS JOIN json_each(?) AS k CROSS JOIN places"
        " ON places.stretch = s.value AND places.key = k.value"
        f" UNION ALL SELECT number, NULL {_FRESH} AND {_in_fresh(keys)}",
        [to_text([*stretches]), wanted, *_sought(keys)],
    )
    found: dict[int, set[bytes] | None] = {}
    for chunk, key in rows:
        if key is None:
            found[chunk] = None
        elif (others := found.setdefault(chunk, set())) is not None:
            others.add(_key_of(key))
    return found


_MAX_SOUGHT = 100
"""Maximum number of keys that are searched in each fresh chunk; with more keys, all fresh chunks are returned."""


def _in_fresh(keys: Collection[bytes]) -> str:
    return f"({' OR '.join(['instr(keys, ?)'] * len(_sought(keys))) or 'TRUE'})"


def _sought(keys: Collection[bytes]) -> list[bytes]:
    return [*keys] if len(keys) <= _MAX_SOUGHT else []


def payload_at(query: Query, number: int) -> bytes:
    """The chunk with the span of this number, as an `ExportTraceServiceRequest`; if it was dropped, the next one or
    nothing."""
    return next((payload for _, _, payload in parts(query, after=number - 1)), b"")


def parts(query: Query, *, after: int, since_ns: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Chunks in order, from the one with the span after `after`: the number of its first span, the number of its spans, and
    the spans as an `ExportTraceServiceRequest`. Chunks that ended before `since_ns` are skipped."""
    first = "coalesce((SELECT max(number) FROM chunks WHERE number <= ?), 0)"
    while rows := query(
        f"SELECT number, spans, body FROM chunks WHERE number >= {first} AND number + spans - 1 > ? AND last_ns >= ?"
        " ORDER BY number LIMIT 1",
        [after + 1, after, since_ns],
    ):
        ((number, spans, body),) = rows
        yield number, spans, _decompressed(number, body)
        after = number + spans - 1


def _decompressed(number: int, body: bytes) -> bytes:
    """The spans of a chunk; none if it is damaged."""
    try:
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        damage.note("chunks", number, error, costs=f"the spans from number {number} on are left out")
        return b""


def _number(key: bytes) -> int:
    return int.from_bytes(key, "little", signed=True)


def _key_of(number: int) -> bytes:
    return number.to_bytes(_KEY_BYTES, "little", signed=True)
