"""The api of a tracer in this process, and the spans of two engines: one hands over to the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from history import history
from msgspec import structs
from wire import encoded

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import POOL_BLOCKS
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

REQUEST = "cmpl-1-0-0123abcd"
"""The id of the request on both engines."""
PREFILL = """
    start 600
    L 600 c0 -> 0
    A 0
    S 0+600
    gives h1 600/600 of a
    end delayed length_capped handoff computed 600 lease 30
"""
DECODE = """
    <d> start 600
    <d> takes h1 600/600 of a
    <d> L 600 c0 -> 599 async
    <d> A 599
    wait 2
"""


class Served:
    """The api of a tracer in this process."""

    def __init__(self, folder: Path) -> None:
        store = folder / "s.db"
        metrics = Metrics()
        self.pipeline = Pipeline(SqliteWriter(store), metrics, grace_ns=0)
        self._client = TestClient(application(self.pipeline, SqliteReader(store), metrics))

    def hear(self, events: Sequence[Event]) -> None:
        """Take the events of several engines."""
        for _, part in itertools.groupby(events, key=lambda event: event.recorder):
            self.pipeline.ingest(encoded(list(part), {POOL_BLOCKS.key: 50}), transport="grpc")
        self.pipeline.tidy()

    def get(self, path: str, **query: str | int) -> Any:
        return self._client.get(path, params=query).raise_for_status().json()


def nixl(text: str) -> list[Event]:
    """A history of engines with NIXL's connector."""
    return history(text, connector="NixlConnector")


def skewed(events: Sequence[Event], skew_s: float) -> list[Event]:
    """The events, with the clock of the engine that decodes ahead by so much."""
    ahead_ns = round(skew_s * 1e9)
    return [
        each
        if each.engine != "d"
        else structs.replace(each, start_ns=each.start_ns + ahead_ns, end_ns=each.end_ns + ahead_ns)
        for each in events
    ]
