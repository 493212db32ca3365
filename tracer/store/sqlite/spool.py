"""The spool: batches that a tracer still has to send to ClickHouse, in its own SQLite file.

A batch enters the spool in the transaction that stores it, so acknowledged data stays here until it is sent. A row
holds all of a batch that another store needs; no other table is read. Sent batches are dropped with the next batch. If
the process ends before that, they are sent again, and ClickHouse's tables tolerate the duplicates. When the spool is
full, the oldest batches are dropped and counted.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from kvtrail.tracer.store import Batch, Chunk, damage
from kvtrail.tracer.store.sqlite.database import Database, whole_sum

SCHEMA = (
    """CREATE TABLE spool (
    number INTEGER PRIMARY KEY AUTOINCREMENT, spans INTEGER NOT NULL, bytes INTEGER NOT NULL, at_ns INTEGER NOT NULL,
    body BLOB NOT NULL
)""",
    """CREATE TABLE spool_state (
    tracer TEXT NOT NULL, bytes INTEGER NOT NULL, dropped_batches INTEGER NOT NULL, dropped_spans INTEGER NOT NULL
)""",
    # For the queries of every scrape, without the bodies.
    "CREATE INDEX spool_sizes ON spool (number, at_ns, bytes)",
    "INSERT INTO spool_state VALUES (lower(hex(randomblob(16))), 0, 0, 0)",
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode
_BYTES, _SPANS = "CAST(bytes AS INTEGER)", "CAST(spans AS INTEGER)"
_LEVEL = 1
"""The level of zstd's compression. A batch usually stays for a second."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The batches that wait in the spool, and those that were dropped unsent.

    Attributes:
        batches, bytes: totals of the waiting batches.
        oldest_ns: when the oldest batch was added; 0 if none waits.
        dropped_batches, dropped_spans: batches and spans dropped since the file was created, because the spool was
            full.
    """

    batches: int
    bytes: int
    oldest_ns: int
    dropped_batches: int
    dropped_spans: int


class Spool:
    """The spool of one store. The store's writer calls `put` and `sweep`, the sender all other methods."""

    def __init__(self, path: Path, *, most_bytes: int) -> None:
        self._database = Database(path)
        self._most_bytes = most_bytes
        self._confirmed = 0
        self._compress = zstandard.ZstdCompressor(_LEVEL, write_checksum=True).compress

    def put(self, db: sqlite3.Connection, batch: Batch) -> None:
        """Add a batch within the open transaction, and drop sent batches, and the oldest ones if the spool is full."""
        self.sweep(db)
        content = _to_send(batch)
        if content != Batch():
            body = self._compress(_encode(content))
            spans = 0 if batch.chunk is None else batch.chunk.spans
            row = (spans, len(body), time.time_ns(), body)
            db.execute("INSERT INTO spool (spans, bytes, at_ns, body) VALUES (?, ?, ?, ?)", row)
            db.execute("UPDATE spool_state SET bytes = bytes + ?", (len(body),))
        self._make_room(db)

    def sweep(self, db: sqlite3.Connection) -> None:
        """Drop sent batches, within the open transaction."""
        _drop(db, self._confirmed)

    def tracer(self) -> str:
        """The id of this spool; batch numbers are unique within it."""
        return str(self._database.query("SELECT tracer FROM spool_state")[0][0])

    def last_number(self) -> int:
        """The number of the last added batch, if it is still there."""
        return int(self._database.query("SELECT coalesce(max(number), 0) FROM spool")[0][0])

    def read(self, *, after: int, most_bytes: int) -> list[tuple[int, Batch]]:
        """The first batches after this number, in order, up to this many compressed bytes, but at least one. A damaged batch
        is returned empty, so that later ones do not wait for it."""
        batches: list[tuple[int, Batch]] = []
        size = 0
        # Without the casts, a damaged column (an invalid text, or a text in place of a number) fails the whole query.
        query = f"SELECT number, {_BYTES}, CAST(body AS BLOB) FROM spool WHERE number > ? ORDER BY number"
        rows = self._database.connection().execute(query, (after,))
        for number, bytes_, body in rows:
            size += bytes_
            if batches and size > most_bytes:
                break
            batches.append((number, _batch(number, body)))
        rows.close()
        return batches

    def confirm(self, number: int) -> None:
        """Note that everything up to this number was sent."""
        self._confirmed = number

    def waiting(self) -> Waiting:
        """The waiting batches, without those that were sent but not dropped yet."""
        count = f"SELECT count(*), {whole_sum(_BYTES)}, coalesce(CAST(min(at_ns) AS INTEGER), 0)"
        (waiting,) = self._database.query(
            f"{count} FROM spool INDEXED BY spool_sizes WHERE number > ?", [self._confirmed]
        )
        (dropped,) = self._database.query("SELECT dropped_batches, dropped_spans FROM spool_state")
        return Waiting(*waiting, *dropped)

    def _make_room(self, db: sqlite3.Connection) -> None:
        (surplus,) = db.execute("SELECT bytes - ? FROM spool_state", (self._most_bytes,)).fetchone()
        if surplus <= 0:
            return
        last = spans = batches = 0
        for number, bytes_, of_batch in db.execute(f"SELECT number, {_BYTES}, {_SPANS} FROM spool ORDER BY number"):
            if surplus <= 0:
                break
            last, surplus = number, surplus - bytes_
            spans, batches = spans + of_batch, batches + 1
        _drop(db, last)
        db.execute(
            "UPDATE spool_state SET dropped_batches = dropped_batches + ?, dropped_spans = dropped_spans + ?",
            (batches, spans),
        )


def _drop(db: sqlite3.Connection, number: int) -> None:
    """Drop the batches up to this number."""
    gone, batches = db.execute(
        f"SELECT {whole_sum(_BYTES)}, count(*) FROM spool WHERE number <= ?", (number,)
    ).fetchone()
    if batches:
        db.execute("DELETE FROM spool WHERE number <= ?", (number,))
        db.execute("UPDATE spool_state SET bytes = bytes - ?", (gone,))


def _batch(number: int, body: Any) -> Batch:
    """The batch in a row; an empty one if the row is damaged."""
    try:
        return _decode(zstandard.decompress(body))
    except (zstandard.ZstdError, ValueError, TypeError) as error:
        damage.note("spool", number, error, costs="do not reach ClickHouse; the store itself has their spans")
        return Batch()


def _to_send(batch: Batch) -> Batch:
    """The batch without the values that only the local store reads."""
    chunk = batch.chunk and Chunk(payload=batch.chunk.payload, spans=batch.chunk.spans, last_ns=batch.chunk.last_ns)
    own = [row for row in batch.handoffs if row.is_own]
    return replace(batch, chunk=chunk, handoffs=own, digest=b"", seen={}, settled=None, judged=None)
