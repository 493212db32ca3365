"""Nothing can be changed over the network, except by sending spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.routing import BaseRoute, Mount, Route

from kvtrail.tracer.serve.api.process_state import FleetProcess
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

READING = {"GET", "HEAD", "OPTIONS"}
CHANGING = ("POST", "PUT", "PATCH", "DELETE")


@pytest.fixture(params=["sidecar", "fleet"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestClient]:
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    reader: Any = SqliteReader(tmp_path / "s.db")
    fleet = FleetProcess(reader)
    yield TestClient(application(pipeline if request.param == "sidecar" else fleet, reader, Metrics()))
    pipeline.close()


def accepted(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, set[str]]]:
    """Each route's path, and the methods that it answers to."""
    for route in routes:
        assert isinstance(route, Route | Mount), f"{route} is of a kind that this test does not know"
        if isinstance(route, Route):
            yield route.path, set(route.methods or CHANGING)
        else:
            assert type(route.app).__name__ == "StaticFiles", f"{route.path} is no folder of files"


def test_only_sending_spans_is_no_reading(client: TestClient) -> None:
    routes = dict(accepted(client.app.routes))  # type: ignore[attr-defined]  # an ASGI application in general has none
    assert {"/api/findings", "/api/markers", "/metrics"} <= routes.keys()
    others = {path for path, methods in routes.items() if not methods <= READING}
    is_sidecar = "/v1/traces" in routes
    assert others == ({"/v1/traces"} if is_sidecar else set())


@pytest.mark.parametrize("method", CHANGING)
def test_a_change_is_refused(client: TestClient, method: str) -> None:
    for path in ("/api/findings", "/api/markers", "/api/requests/r", "/metrics"):
        assert client.request(method, path, json={"text": "x"}).status_code == 405, path
    assert client.request(method, "/api/silences", json={}).status_code == 404
