"""Stores to test: a tracer's own file, and ClickHouse, which is sent what the file's spool has."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from wire import encoded

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.remote_handoffs import RemoteHandoffs
from kvtrail.tracer.serve.spool_sender import SpoolSender
from kvtrail.tracer.store.clickhouse.connection import Address
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.clickhouse.writer import ClickHouseWriter
from kvtrail.tracer.store.sqlite.spool import Spool
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

FOR_EVER_HOURS = 10.0**6
"""The histories of the tests are of last year."""
ROOMY = 2**30


def last_number(reader: SqliteReader) -> int:
    """The number of the last span that a store has received."""
    return int(reader.query("SELECT number FROM log_end")[0][0])


def clickhouse() -> Address:
    """A new database in ClickHouse's own engine; a process can have one such engine."""
    return Address.of(f"chdb://{_folder()}?database=t{uuid.uuid4().hex}")


@cache
def _folder() -> str:
    return mkdtemp(prefix="chdb-")


class FleetTracer:
    """A tracer without its servers, which sends to ClickHouse when the test asks it to.

    Attributes:
        local, fleet: what readers of its own file, and of ClickHouse, see.
        spool: what waits.
    """

    def __init__(self, folder: Path, address: Address, *, most_bytes: int = ROOMY) -> None:
        self.path = folder / "own.db"
        self.address = address
        self.spool = Spool(self.path, most_bytes=most_bytes)
        self.writer = SqliteWriter(self.path, spool=self.spool)
        self.pipeline = Pipeline(self.writer, Metrics(), grace_ns=0)
        self.now_s = 0.0
        others = RemoteHandoffs(self.pipeline, clock=lambda: self.now_s)
        self.sender = SpoolSender(self.spool, self.sink, others)
        self.local = SqliteReader(self.path)

    def sink(self) -> ClickHouseWriter:
        return ClickHouseWriter(self.address, tracer=self.spool.tracer(), retain_hours=FOR_EVER_HOURS)

    @property
    def fleet(self) -> ClickHouseReader:
        return ClickHouseReader(self.address)

    def hear(self, events: Sequence[Event], **about: str) -> None:
        """Receive and judge events of one recorder."""
        named = {name.replace("_", "."): value for name, value in about.items()}
        self.pipeline.ingest(encoded(events, named), transport="grpc")

    def send(self, *, after_s: float = 60.0) -> None:
        """Write all rows, send everything, and hear what others have sent, this number of seconds after the last time."""
        self.now_s += after_s
        self.pipeline.tidy()
        self.sender.send()


def answers(*asking: Callable[[], object]) -> list[object]:
    """What is answered to each question."""
    return [ask() for ask in asking]
