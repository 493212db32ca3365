"""A sidecar in this process, without its servers: a pipeline with its store, and the api in front of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from wire import encoded

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter


class Sidecar:
    """A sidecar with its store in a folder; `options` are those of its pipeline, which waits for no missing events."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.store = folder, folder / "s.db"
        self._options = {"grace_ns": 0, **options}
        self.start()

    def start(self) -> None:
        """Start it, or start it again with the same store."""
        self.metrics, self.writer = Metrics(), SqliteWriter(self.store)
        self.pipeline = Pipeline(self.writer, self.metrics, **self._options)
        self.reader: Reader = SqliteReader(self.store)
        self.__dict__.pop("client", None)

    @cached_property
    def client(self) -> TestClient:
        app = application(self.pipeline, self.reader, self.metrics)
        return TestClient(app, raise_server_exceptions=False)

    def take(self, payload: bytes) -> None:
        """Take a request, and do what is done every second."""
        self.pipeline.ingest(payload, transport="grpc")
        self.pipeline.tidy()

    def hear(self, events: Sequence[Event], about: Mapping[str, str | int] | None = None) -> None:
        """Take the events of one recorder or several; their resources say this, too."""
        for _, part in itertools.groupby(events, key=lambda event: event.recorder):
            self.take(encoded(list(part), about))

    def get(self, path: str, **query: Any) -> Any:
        """The answer of the api to a question that it can answer."""
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def value(self, name: str, **labels: str) -> float | None:
        """A sample of a metric, with exactly these labels."""
        return self.metrics.registry.get_sample_value(name, labels)
